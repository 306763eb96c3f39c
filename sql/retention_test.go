package outboxsql_test

import (
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestStreamPartitionDrop: a partition of a stream is dropped when all positions are past it, none
// of its events has a delivery, and it is old enough; the obstacle is named. The marks of the
// events do not matter.
func TestStreamPartitionDrop(t *testing.T) {
	t.Parallel()
	conn := partitioned(t)
	testdb.Exec(t, conn, `UPDATE outbox_mode SET mode = 'stream'; DROP INDEX outbox_events_fresh`)
	wants := func(what, part string) {
		t.Helper()
		if got := drop(t, conn, "p20310310"); !strings.Contains(got, part) {
			t.Errorf("%s: %q, want %q", what, got, part)
		}
	}
	testdb.Exec(t, conn, `INSERT INTO outbox_events (event_type, payload, state, created_at) SELECT 'a', '1', CASE WHEN i % 2 = 0 THEN 'done' ELSE 'fresh' END, '2031-02-28' FROM generate_series(1, 100) AS i`)
	wants("the day at hand", "new events still go into it")
	extend(t, conn, monday().Add(24*time.Hour))
	young := writeOne(t, conn)
	wants("a stream that no relay has read", "behind: the stream has had no relay yet and is at event 0")
	testdb.Exec(t, conn, `INSERT INTO outbox_positions (destination, head) VALUES ('', 100), ('shop', $1), ('late', 99)`, young)
	wants("one that lags", "behind: destination late is at event 99")
	testdb.Exec(t, conn, `UPDATE outbox_positions SET head = 100, open = '{[50,51)}' WHERE destination = 'late'`)
	wants("one with an open event", "behind: destination late waits for event 50")
	testdb.Exec(t, conn, `UPDATE outbox_positions SET head = $1::bigint, open = int8multirange(int8range(60, $1)) WHERE destination = 'late'`, young)
	wants("one with an open range", "behind: destination late waits for event 60")
	testdb.Exec(t, conn, `UPDATE outbox_positions SET open = int8multirange(int8range(101, $1)) WHERE destination = 'late'`, young)
	wants("one with ids that no relay has seen", "behind: destination late waits for event 101")
	testdb.Exec(t, conn, `UPDATE outbox_positions SET open = int8multirange(int8range($1::bigint, $1::bigint + 1)) WHERE destination = 'late'`, young)
	testdb.Exec(t, conn, `UPDATE outbox_positions SET head = 7 WHERE destination = ''`)
	wants("the unrouted scanner", "behind: the unrouted scanner is at event 7")
	testdb.Exec(t, conn, `UPDATE outbox_positions SET head = 100 WHERE destination = ''`)
	testdb.Exec(t, conn, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (3, 'shop', 'a', 'dead')`)
	wants("with a dead letter", "event 3 has a delivery")
	testdb.Exec(t, conn, `DELETE FROM outbox_deliveries`)
	testdb.Exec(t, conn, `UPDATE outbox_events SET created_at = '2031-03-01' WHERE id = 40`)
	wants("written lately", "event 40 was not written long enough ago")
	testdb.Exec(t, conn, `UPDATE outbox_events SET created_at = '2031-02-28' WHERE id = 40`)
	testdb.Exec(t, conn, `UPDATE outbox_mode SET becoming = 'queue'`)
	wants("a change of the mode", "busy: the mode")
	testdb.Exec(t, conn, `UPDATE outbox_mode SET becoming = NULL`)
	wants("delivered and old", "dropped")
	if got := testdb.List[int64](t, conn, `SELECT id FROM outbox_events`); len(got) != 1 || got[0] != young {
		t.Errorf("left: %v", got)
	}
}

// TestStreamPartitionDropUnread: events done in the queue are dropped before a relay has read the
// stream.
func TestStreamPartitionDropUnread(t *testing.T) {
	t.Parallel()
	conn := partitioned(t)
	testdb.Exec(t, conn, `INSERT INTO outbox_events (event_type, payload, state, created_at) SELECT 'a', '1', 'done', '2031-02-28' FROM generate_series(1, 100)`)
	extend(t, conn, monday().Add(24*time.Hour))
	writeOne(t, conn)
	setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
	if got := drop(t, conn, "p20310310"); got != "dropped" {
		t.Error(got)
	}
}

// TestStreamPartitionDropBesideSeek: a position that is moved back while the partition is being
// dropped keeps it.
func TestStreamPartitionDropBesideSeek(t *testing.T) {
	t.Parallel()
	conn := partitioned(t)
	testdb.Exec(t, conn, `UPDATE outbox_mode SET mode = 'stream'`)
	testdb.Exec(t, conn, `INSERT INTO outbox_events (event_type, payload, created_at) VALUES ('a', '1', '2031-02-28')`)
	extend(t, conn, monday().Add(24*time.Hour))
	testdb.Exec(t, conn, `INSERT INTO outbox_positions (destination, head) VALUES ('shop', 1)`)
	other := testdb.Connect(t, conn.Config().ConnString())
	testdb.Exec(t, other, `BEGIN`)
	testdb.Exec(t, other, `UPDATE outbox_positions SET head = 0`)
	dropped := make(chan string, 1)
	go func() { dropped <- drop(t, conn, "p20310310") }()
	waitFor(t, other, `SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted`)
	testdb.Exec(t, other, `COMMIT`)
	if got := <-dropped; !strings.Contains(got, "must still be delivered") && !strings.Contains(got, "behind: destination shop is at event 0") {
		t.Errorf("beside it: %s", got)
	}
}
