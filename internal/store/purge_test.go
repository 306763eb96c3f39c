package store

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// streamDB is a database whose table is a stream, and a session of it.
func streamDB(t *testing.T) (*db, *Session) {
	t.Helper()
	d := newDB(t)
	if err := outboxsql.SetMode(t.Context(), d.conn, "public", outboxsql.ModeStream, outboxsql.ModeOptions{}); err != nil {
		t.Fatal(err)
	}
	o := options()
	o.Mode = outboxsql.ModeStream
	return d, d.relaySession(o)
}

// TestPurgeStream: old events below every position go, in batches; those with a delivery, in an
// open range, or ahead of a position stay.
func TestPurgeStream(t *testing.T) {
	t.Parallel()
	d, k := streamDB(t)
	left := `SELECT string_agg(id::text, ' ' ORDER BY id) FROM outbox_events`
	d.insert("a", 30)
	d.exec(`UPDATE outbox_events SET created_at = now() - interval '2 hours' WHERE id <= 25`)
	if n := d.purgeAll(k, time.Hour, 5); n != 1 {
		t.Errorf("%d batches of a stream that nobody has read", n)
	}
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (3, 'x', 'a', 'dead'), (4, 'x', 'a', 'retry')`)
	d.exec(`INSERT INTO outbox_positions (destination, head, open) VALUES ('x', 30, '{}'), ('y', 30, '{[10,11),[20,21)}'), ('', 28, '{}')`)
	d.purgeAll(k, time.Hour, 2)
	d.expect("below what is open", left, "3 4 "+numbers(10))
	d.exec(`UPDATE outbox_positions SET head = 15, open = '{}' WHERE destination = 'y'`)
	d.purgeAll(k, time.Hour, 2)
	d.expect("below the lowest head", left, "3 4 "+numbers(16))
	d.exec(`UPDATE outbox_positions SET head = 30 WHERE destination = 'y'`)
	d.exec(`INSERT INTO outbox_replays (destination, from_id, to_id, head, open, number, created_by) VALUES ('x', 18, 24, 20, '{[19,20)}', 1000, 'ann')`)
	d.purgeAll(k, time.Hour, 2)
	d.expect("below a replay", left, "3 4 "+numbers(19))
	d.exec(`UPDATE outbox_replays SET state = 'done', finished_at = now()`)
	if n := d.purgeAll(k, time.Hour, 4); n != 4 {
		t.Errorf("%d batches, want 3 and one of young ones", n)
	}
	d.expect("the old ones", left, "3 4 "+numbers(26))
	d.purgeAll(k, 0, 100)
	d.expect("kept for no time", left, "3 4 29 30")
	d.exec(`DELETE FROM outbox_deliveries`)
	if _, _, _, err := k.Purge(t.Context(), Range{3, math.MaxInt64}, 0, 100); err != nil {
		t.Error(err)
	}
	d.expect("in a range", left, "3 29 30")
}

// numbers lists the ids up to the last one.
func numbers(from int) string {
	const to = 30
	var all []string
	for i := from; i <= to; i++ {
		all = append(all, fmt.Sprint(i))
	}
	return strings.Join(all, " ")
}

// TestKeepStreamPartitions: a partition that a destination has not read yet goes as a whole as soon
// as it has; no events are deleted from it one by one before.
func TestKeepStreamPartitions(t *testing.T) {
	t.Parallel()
	d := newPartitionedDB(t)
	if err := outboxsql.SetMode(t.Context(), d.conn, "public", outboxsql.ModeStream, outboxsql.ModeOptions{}); err != nil {
		t.Fatal(err)
	}
	p := NewPartitions(d.Connector)
	const keep = 24 * time.Hour
	var ids []int64
	for n := range 4 {
		d.keep(p, partitionDay(n), keep)
		id := d.insert("a", 1)[0]
		d.exec(`UPDATE outbox_events SET created_at = $1 WHERE id = $2`, partitionDay(n), id)
		ids = append(ids, id)
	}
	d.exec(`INSERT INTO outbox_positions (destination, head) VALUES ('x', $1), ('y', $2)`, ids[3], ids[0])
	d.exec(`INSERT INTO outbox_replays (destination, from_id, to_id, head, number, created_by) VALUES ('x', $1, $2, $1::bigint - 1, 1000, 'ann')`, ids[0], ids[1])
	if kept := d.keep(NewPartitions(d.Connector), partitionDay(4), keep); len(kept.Dropped) > 0 || !strings.HasPrefix(kept.Kept["outbox_events_p20310301"], "behind: replay 1 of x is at event") {
		t.Errorf("beside a replay: %+v", kept)
	}
	d.exec(`UPDATE outbox_replays SET state = 'done', finished_at = now()`)
	p = NewPartitions(d.Connector) // has forgotten why they had to stay
	u := d.keep(p, partitionDay(4), keep)
	first, second := u.Dropped, u.Kept["outbox_events_p20310302"]
	if dayNames(first) != "0301" || !strings.HasPrefix(second, fmt.Sprintf("behind: destination y is at event %d", ids[0])) {
		t.Errorf("dropped %v, kept %v", first, u.Kept)
	}
	for _, r := range u.Purge {
		if r.After < ids[1] && r.Upto >= ids[1] {
			t.Errorf("events of the second day are to be deleted one by one: %v", u.Purge)
		}
	}
	d.exec(`UPDATE outbox_positions SET head = $1`, ids[3])
	if u = d.keep(p, partitionDay(4).Add(dropSoonAgain), keep); dayNames(u.Dropped) != "0302 0303" {
		t.Errorf("when it has caught up: %+v", u)
	}
}

// TestPurgeStreamPlan: rows to delete are found by index, whatever the statistics say.
func TestPurgeStreamPlan(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	forEachFill(t, func(t *testing.T, d *db) {
		t.Helper()
		conn, err := d.Connect(t.Context(), "maintenance")
		if err != nil {
			t.Fatal(err)
		}
		defer Close(t.Context(), conn)
		if _, err := conn.Prepare(t.Context(), "purge", "EXPLAIN (COSTS off) "+sqlPurgeStream); err != nil {
			t.Fatal(err)
		}
		rows, err := conn.Query(t.Context(), "purge", int64(0), int64(1), 500, int64(math.MaxInt64), []int64{})
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		plan := strings.Join(lines, "\n")
		if n := strings.Count(plan, "using outbox_events_pkey on outbox_events"); n != 2 || !strings.Contains(plan, "using outbox_deliveries_pkey") || strings.Contains(plan, "Scan on outbox_events") {
			t.Errorf("the plan is\n%s", plan)
		}
	})
}
