package ops_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/ops"
)

// bothTables runs f for a plain stream and for a partitioned one.
func bothLetterTables(t *testing.T, deleteEvents bool, f func(t *testing.T, d *lettersDB)) {
	t.Helper()
	testdb.Partitions(t, func(tb testing.TB, partitioned bool) *lettersDB {
		tb.Helper()
		return newStream(tb, deleteEvents, partitioned)
	}, f)
}

// versions distinguishes the row versions of events: none may be written.
const versions = `SELECT concat_ws(' ', id, state, xmin, xmax, ctid) FROM outbox_events ORDER BY id`

// TestReplayOfStream: the rows of events are not touched, and the owner of the shard is notified.
func TestReplayOfStream(t *testing.T) {
	t.Parallel()
	bothLetterTables(t, false, func(t *testing.T, d *lettersDB) {
		t.Helper()
		d.letters(1, 3, "mail")
		d.letters(2, 1, "audit")
		d.exec(`DELETE FROM outbox_events WHERE id = 3`)
		before := d.list(versions)
		heard := d.listen()
		a := ops.BulkAction{Actor: "ann", Reason: "fixed"}
		r, err := d.store.ReplayDeadLetters(t.Context(), ops.DeadLetterFilter{Destination: "mail"}, a)
		if err != nil || r != (ops.BulkResult{Matched: 3, Done: 2, Orphans: 1}) {
			t.Fatalf("%+v, %v", r, err)
		}
		if about := heard(); about != "deliveries" {
			t.Errorf("notified of %q", about)
		}
		d.expect("deliveries", deliveries, "1/mail retry 0 r1 order/1", "2/audit dead 3 r0 order/2", "2/mail retry 0 r1 order/2", "3/mail dead 3 r0 order/3")
		d.expect("due", `SELECT bool_and(available_at <= now())::text FROM outbox_deliveries WHERE state = 'retry'`, "true")
		d.expect("audit", audit, "replay ann 1 mail fixed 1", "replay ann 2 mail fixed 1")
		d.expect("events", versions, before...)
	})
}

// shardsOf lists the shards of deliveries, and those that the hashes of their events give them among n shards.
const shardsOf = `SELECT format('%%s %%s %%s', d.event_id, d.shard, CASE WHEN ordering_key LIKE '#%%' THEN 1 ELSE 1 + coalesce((SELECT %[1]s FROM outbox_events AS e WHERE e.id = d.event_id), d.event_id) %% %[2]d END)
	FROM outbox_deliveries AS d WHERE destination = 'mail' ORDER BY event_id`

// TestReplayChoosesShard: a dead letter keeps the shard of its death through all changes, and gets the present one at a
// replay. A change of the number that has begun is awaited.
func TestReplayChoosesShard(t *testing.T) {
	t.Parallel()
	bothLetterTables(t, false, func(t *testing.T, d *lettersDB) {
		t.Helper()
		d.letters(1, 20, "mail")
		d.letters(21, 1, "mail")
		d.exec(`UPDATE outbox_events SET aggregate_id = NULL WHERE id <= 5`)
		d.exec(`UPDATE outbox_deliveries SET shard = 9, ordering_key = CASE WHEN event_id <= 5 THEN NULL WHEN event_id = 6 THEN '#7#order:6' ELSE ordering_key END`)
		d.exec(`UPDATE outbox_positions SET shards = 4`)

		change := testdb.Begin(t, d.pool, pgx.TxOptions{})
		testdb.Exec(t, change, `SELECT FROM outbox_positions WHERE destination = 'mail' FOR UPDATE`)
		testdb.Exec(t, change, `UPDATE outbox_positions SET shards = 3`)
		replayed := make(chan error, 1)
		go func() {
			_, err := d.store.ReplayDeadLetters(t.Context(), ops.DeadLetterFilter{Destination: "mail", Events: []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}, ops.BulkAction{})
			replayed <- err
		}()
		testenv.Await(t, "the wait of the replay", func() bool {
			return testdb.One[bool](t, d.pool, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`)
		})
		if err := change.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-replayed; err != nil {
			t.Fatal(err)
		}

		for _, row := range d.list(fmt.Sprintf(shardsOf, pgschema.Hash("e."), 3)) {
			var id, has, want int
			if _, err := fmt.Sscan(row, &id, &has, &want); err != nil {
				t.Fatal(err)
			}
			if id > 10 {
				want = 9
			}
			if has != want {
				t.Errorf("event %d is in shard %d, want %d", id, has, want)
			}
		}
	})
}

// TestDiscardOfStream: the rows behind the letter continue; an event is deleted only if every
// position is past it.
func TestDiscardOfStream(t *testing.T) {
	t.Parallel()
	for _, deletes := range []bool{false, true} {
		t.Run(fmt.Sprint("deletes ", deletes), func(t *testing.T) {
			t.Parallel()
			bothLetterTables(t, deletes, func(t *testing.T, d *lettersDB) {
				t.Helper()
				d.letters(1, 5, "mail")
				d.letters(3, 1, "audit")
				d.exec(`INSERT INTO outbox_events (id, event_type, payload) VALUES (6, 'a', '1'), (7, 'a', '1')`)
				d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key, available_at) VALUES
					(6, 'mail', 'a', 'parked', 'order/2', now() - interval '1 h'), (7, 'mail', 'a', 'parked', 'order/2', now() - interval '1 h')`)
				d.exec(`INSERT INTO outbox_positions (destination, head, open) VALUES ('audit', 4, '{[1,2)}')`)
				before := d.list(versions)
				heard := d.listen()
				r, err := d.store.DiscardDeadLetters(t.Context(), ops.DeadLetterFilter{Destination: "mail"}, ops.BulkAction{Actor: "ann"})
				if err != nil || r != (ops.BulkResult{Matched: 5, Done: 5}) {
					t.Fatalf("%+v, %v", r, err)
				}
				if about := heard(); about != "deliveries" {
					t.Errorf("notified of %q", about)
				}
				d.expect("deliveries", deliveries, "3/audit dead 3 r0 order/3", "6/mail retry 0 r0 order/2", "7/mail parked 0 r0 order/2")
				d.expect("due", `SELECT (available_at > now() - interval '1 min')::text FROM outbox_deliveries WHERE event_id = 6`, "true")
				want := before
				if deletes {
					want = slices.DeleteFunc(slices.Clone(before), func(row string) bool { return strings.HasPrefix(row, "2 ") || strings.HasPrefix(row, "4 ") })
				}
				d.expect("events", versions, want...)
			})
		})
	}
}

// TestDiscardOfStreamWithoutPositions deletes nothing: no destination has begun to read.
func TestDiscardOfStreamWithoutPositions(t *testing.T) {
	t.Parallel()
	d := newStream(t, true, false)
	d.exec(`DELETE FROM outbox_positions`)
	d.letters(1, 1, "mail")
	if r, err := d.store.DiscardDeadLetters(t.Context(), ops.DeadLetterFilter{All: true}, ops.BulkAction{}); err != nil || r.Done != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	d.expect("events", events, "1 fresh f")
}

// TestDiscardBehindALockedHead: a relay is delivering the head of the line, so no row behind it may
// begin.
func TestDiscardBehindALockedHead(t *testing.T) {
	t.Parallel()
	d := newStream(t, false, false)
	d.letters(1, 1, "mail")
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key)
		SELECT i, 'mail', 'a', 'parked', 'order/1' FROM generate_series(2, 4) i`)
	tx, err := d.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // ends the test
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox_deliveries WHERE event_id = 2 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	if r, err := d.store.DiscardDeadLetters(t.Context(), ops.DeadLetterFilter{All: true}, ops.BulkAction{}); err != nil || r.Done != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	d.expect("deliveries", deliveries, "2/mail parked 0 r0 order/1", "3/mail parked 0 r0 order/1", "4/mail parked 0 r0 order/1")
}

// TestEditOfStream refuses while the event is on its way to a destination.
func TestEditOfStream(t *testing.T) {
	t.Parallel()
	bothLetterTables(t, false, func(t *testing.T, d *lettersDB) {
		t.Helper()
		d.letters(1, 2, "mail")
		d.exec(`INSERT INTO outbox_positions (destination, head, open) VALUES ('audit', 1, '{[1,2)}')`)
		err := d.store.EditEvent(t.Context(), 1, json.RawMessage(`{"order": 7}`), ops.Action{})
		if !errors.Is(err, ops.ErrNotDead) || !strings.Contains(err.Error(), `on its way to "audit"`) {
			t.Errorf("in flight: %v", err)
		}
		if err := d.store.EditEvent(t.Context(), 2, json.RawMessage(`{"order": 7}`), ops.Action{}); err != nil {
			t.Errorf("not read yet: %v", err)
		}
		d.expect("payloads", `SELECT payload::text FROM outbox_events ORDER BY id`, `{"order" : 1}`, `{"order": 7}`)
	})
}

// TestShowOfStream: the state of an event differs from that of its row.
func TestShowOfStream(t *testing.T) {
	t.Parallel()
	bothLetterTables(t, false, func(t *testing.T, d *lettersDB) {
		t.Helper()
		d.letters(1, 1, "mail")
		d.exec(`INSERT INTO outbox_events (id, event_type, payload) VALUES (2, 'a', '1'), (3, 'a', '1'), (4, 'a', '1')`)
		d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (4, 'mail', 'a', 'retry'), (4, '', 'a', 'unrouted')`)
		d.exec(`INSERT INTO outbox_positions (destination, head, open) VALUES ('', 1, '{}'), ('audit', 4, '{[3,4)}')`)
		for id, want := range map[int64]string{1: "dead", 2: "done", 3: "waiting", 4: "waiting"} {
			c, err := d.store.Case(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(c.Event.State); got != want {
				t.Errorf("event %d: %s, want %s", id, got, want)
			}
		}
	})
}

// list returns the lines of a query.
func (d *lettersDB) list(sql string) []string {
	d.Helper()
	return testdb.List[string](d, d.pool, sql)
}
