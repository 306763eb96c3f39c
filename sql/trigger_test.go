package outboxsql_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/pgschema"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// triggerLog receives the notifications of a schema.
type triggerLog struct {
	conn    *pgx.Conn
	channel string
	marks   int
}

// listen listens as a relay does.
func listen(tb testing.TB, url, schema string) *triggerLog {
	tb.Helper()
	e := &triggerLog{conn: testdb.Connect(tb, url), channel: pgschema.Channel(schema)}
	testdb.Exec(tb, e.conn, "LISTEN "+pgx.Identifier{e.channel}.Sanitize())
	testdb.Exec(tb, e.conn, showListener, e.channel)
	return e
}

const (
	// showListener takes the lock by which writers see that a relay listens.
	showListener = `SELECT pg_advisory_lock_shared(1853122163, hashtext($1))`
	hideListener = `SELECT pg_advisory_unlock_shared(1853122163, hashtext($1))`
)

// heard returns the payloads of all commits before the call: notifications arrive in order, so a
// marker of its own ends them.
func (e *triggerLog) heard(tb testing.TB) []string {
	tb.Helper()
	e.marks++
	mark := "mark " + strconv.Itoa(e.marks)
	testdb.Exec(tb, e.conn, `SELECT pg_notify($1, $2)`, e.channel, mark)
	payloads := []string{}
	for {
		n, err := e.conn.WaitForNotification(tb.Context())
		if err != nil {
			tb.Fatal(err)
		}
		if n.Payload == mark {
			return payloads
		}
		payloads = append(payloads, n.Payload)
	}
}

// expect fails the test unless exactly these payloads were heard.
func (e *triggerLog) expect(tb testing.TB, what string, want ...string) {
	tb.Helper()
	if got := e.heard(tb); !slices.Equal(got, want) {
		tb.Errorf("%s: heard %d payloads %.300q, want %d %.300q", what, len(got), got, len(want), want)
	}
}

// insertMany inserts n events in one statement and returns their ids as text.
func insertMany(tb testing.TB, conn *pgx.Conn, n int) []string {
	tb.Helper()
	return testdb.List[string](tb, conn, `WITH i AS (INSERT INTO outbox_events (event_type, payload)
		SELECT 'a', to_json(i) FROM generate_series(1, $1::int) i RETURNING id) SELECT id::text FROM i`, n)
}

const insertOne = `INSERT INTO outbox_events (event_type, payload) VALUES ('order.created', '{"id": 1042}')`

// takeLock takes the lock as a polling relay does.
const takeLock = `SELECT pg_advisory_lock(1853122162::bigint << 32 | 'outbox_events'::regclass::oid::bigint)`

const releaseLock = `SELECT pg_advisory_unlock(1853122162::bigint << 32 | 'outbox_events'::regclass::oid::bigint)`

func TestTriggerNotifies(t *testing.T) {
	t.Parallel()
	for _, notify := range []outboxsql.NotifyMode{outboxsql.NotifyAuto, outboxsql.NotifyAlways} {
		t.Run(string(notify), func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			conn, ears := testdb.Connect(t, url), listen(t, url, "public")
			migrate(t, conn, "public", notify)

			ears.expect(t, "one row", insertMany(t, conn, 1)...)
			ears.expect(t, "64 rows", insertMany(t, conn, 64)...)
			insertMany(t, conn, 65)
			ears.expect(t, "65 rows", "")
			insertMany(t, conn, 100_000)
			ears.expect(t, "100,000 rows", "")

			testdb.Exec(t, conn, "BEGIN")
			ids := insertMany(t, conn, 3)
			ids = append(ids, insertMany(t, conn, 2)...)
			ears.expect(t, "before the commit")
			testdb.Exec(t, conn, "COMMIT")
			ears.expect(t, "two statements", ids...)

			if _, err := conn.CopyFrom(t.Context(), pgx.Identifier{"outbox_events"}, []string{"event_type", "payload"},
				pgx.CopyFromRows([][]any{{"a", []byte("1")}, {"a", []byte("2")}})); err != nil {
				t.Fatal(err)
			}
			if heard := ears.heard(t); len(heard) != 2 {
				t.Errorf("COPY of 2 rows: heard %q", heard)
			}
			if _, err := conn.CopyFrom(t.Context(), pgx.Identifier{"outbox_events"}, []string{"event_type", "payload"},
				pgx.CopyFromSlice(1000, func(int) ([]any, error) { return []any{"a", []byte("1")}, nil })); err != nil {
				t.Fatal(err)
			}
			ears.expect(t, "COPY of 1000 rows", "")
		})
	}
}

// TestTriggerNamesGivenIDs: an id that was given, or is negative, is named as it is.
func TestTriggerNamesGivenIDs(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn, ears := testdb.Connect(t, url), listen(t, url, "public")
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	testdb.Exec(t, conn, `INSERT INTO outbox_events (id, event_type, payload) VALUES (-9223372036854775808, 'a', '1'), (0, 'a', '1'), (9223372036854775807, 'a', '1')`)
	ears.expect(t, "given ids", "-9223372036854775808", "0", "9223372036854775807")
}

func TestTriggerStaysSilent(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn, ears := testdb.Connect(t, url), listen(t, url, "public")
	migrate(t, conn, "public", outboxsql.NotifyAuto)

	testdb.Exec(t, conn, `INSERT INTO outbox_events (event_type, payload, idempotency_key) VALUES ('a', '1', 'k')`)
	if heard := ears.heard(t); len(heard) != 1 {
		t.Fatalf("heard %q", heard)
	}
	testdb.Exec(t, conn, `INSERT INTO outbox_events (event_type, payload, idempotency_key) VALUES ('a', '1', 'k') ON CONFLICT DO NOTHING`)
	ears.expect(t, "ON CONFLICT DO NOTHING of nothing")
	testdb.Exec(t, conn, `INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' WHERE false`)
	ears.expect(t, "no row")
	testdb.Exec(t, conn, `UPDATE outbox_events SET state = 'done', processed_at = now()`)
	testdb.Exec(t, conn, `DELETE FROM outbox_events`)
	ears.expect(t, "update and delete")

	testdb.Exec(t, conn, "BEGIN")
	insertMany(t, conn, 5)
	testdb.Exec(t, conn, "ROLLBACK")
	ears.expect(t, "rollback")

	testdb.Exec(t, conn, "BEGIN")
	kept := insertMany(t, conn, 1)
	testdb.Exec(t, conn, "SAVEPOINT s")
	insertMany(t, conn, 5)
	testdb.Exec(t, conn, "ROLLBACK TO s")
	testdb.Exec(t, conn, "COMMIT")
	ears.expect(t, "rollback to a savepoint", kept...)
}

func TestTriggerWhileARelayPolls(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn, relay, ears := testdb.Connect(t, url), testdb.Connect(t, url), listen(t, url, "public")
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	migrate(t, conn, "other", outboxsql.NotifyAuto)
	others := listen(t, url, "other")

	testdb.Exec(t, relay, takeLock)
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		testdb.Exec(t, conn, "BEGIN ISOLATION LEVEL "+isolation)
		insertMany(t, conn, 3)
		insertMany(t, conn, 100)
		testdb.Exec(t, conn, "COMMIT")
		ears.expect(t, "suppressed, "+isolation)
	}
	id := testdb.One[string](t, conn, `INSERT INTO other.outbox_events (event_type, payload) VALUES ('a', '1') RETURNING id::text`)
	others.expect(t, "the relay of another schema", id)

	// The lock counts when the row is inserted, in a transaction old or new.
	testdb.Exec(t, conn, "BEGIN ISOLATION LEVEL SERIALIZABLE")
	insertMany(t, conn, 1)
	testdb.Exec(t, relay, releaseLock)
	named := insertMany(t, conn, 1)
	testdb.Exec(t, conn, "COMMIT")
	ears.expect(t, "released in the middle", named...)

	testdb.Exec(t, relay, takeLock)
	insertMany(t, conn, 1)
	ears.expect(t, "suppressed again")
	if err := relay.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The server releases the lock a moment after the socket has closed.
	testdb.Exec(t, conn, takeLock)
	testdb.Exec(t, conn, releaseLock)
	ears.expect(t, "the relay is gone", insertMany(t, conn, 1)...)
}

// TestTriggerWithoutAListener: the trigger is silent while no relay listens, also in another schema, next to writers that
// test the lock. It notifies again once a relay listens.
func TestTriggerWithoutAListener(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn, tester := testdb.Connect(t, url), testdb.Connect(t, url)
	for _, schema := range []string{"public", "other"} {
		migrate(t, conn, schema, outboxsql.NotifyAuto)
	}
	const insertOther = `INSERT INTO other.outbox_events (event_type, payload) VALUES ('a', '1')`
	ears, others := listen(t, url, "public"), listen(t, url, "other")
	testdb.Exec(t, others.conn, hideListener, others.channel)

	testdb.Exec(t, conn, insertOther)
	others.expect(t, "no relay listens in this schema")
	ears.expect(t, "a relay listens in this schema", insertMany(t, conn, 1)...)

	testdb.Exec(t, tester, `SELECT pg_advisory_lock(1853122163, hashtext($1))`, others.channel)
	testdb.Exec(t, conn, insertOther)
	others.expect(t, "another writer tests the lock")
	testdb.Exec(t, tester, `SELECT pg_advisory_unlock_all()`)

	testdb.Exec(t, others.conn, showListener, others.channel)
	id := testdb.One[string](t, conn, insertOther+` RETURNING id::text`)
	others.expect(t, "a relay listens again", id)
}

// TestTriggerLeavesNoLock: a writer must not keep the relay from the lock, however
// long its transaction lasts.
func TestTriggerLeavesNoLock(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn, relay := testdb.Connect(t, url), testdb.Connect(t, url)
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	testdb.Exec(t, conn, "BEGIN")
	insertMany(t, conn, 1) // no relay listens
	listen(t, url, "public")
	insertMany(t, conn, 100)
	if n := testdb.One[int](t, conn, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()`); n != 0 {
		t.Errorf("%d advisory locks are held after an insert", n)
	}
	testdb.Exec(t, relay, `SET lock_timeout = '100ms'`)
	testdb.Exec(t, relay, takeLock)
	testdb.Exec(t, relay, showListener, "outbox_events")
	testdb.Exec(t, conn, "COMMIT")
}

func TestNotifyAlwaysIgnoresTheLock(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn, relay, ears := testdb.Connect(t, url), testdb.Connect(t, url), listen(t, url, "public")
	migrate(t, conn, "public", outboxsql.NotifyAlways)
	testdb.Exec(t, relay, takeLock)
	ears.expect(t, "always", insertMany(t, conn, 2)...)
}

func TestNotifyOff(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn, ears := testdb.Connect(t, url), listen(t, url, "public")
	migrate(t, conn, "public", outboxsql.NotifyOff)
	insertMany(t, conn, 2)
	ears.expect(t, "off")
}

// TestWriterNeedsNoMore than INSERT on the one table: neither SELECT, nor the sequence, nor the
// functions.
func TestWriterNeedsNoMore(t *testing.T) {
	t.Parallel()
	for _, notify := range []outboxsql.NotifyMode{outboxsql.NotifyAuto, outboxsql.NotifyAlways} {
		t.Run(string(notify), func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			conn, ears := testdb.Connect(t, url), listen(t, url, "relay")
			migrate(t, conn, "relay", notify)
			role := role(t, conn)
			testdb.Exec(t, conn, "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA relay FROM public")
			testdb.Exec(t, conn, "GRANT USAGE ON SCHEMA relay TO "+role)
			testdb.Exec(t, conn, "GRANT INSERT ON relay.outbox_events TO "+role)
			testdb.Exec(t, conn, "SET ROLE "+role)
			testdb.Exec(t, conn, "SET search_path = relay")
			testdb.Exec(t, conn, insertOne)
			if heard := ears.heard(t); len(heard) != 1 {
				t.Errorf("heard %q", heard)
			}
			testdb.Exec(t, conn, `INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 65)`)
			ears.expect(t, "65 rows", "")
			// A writer may have any search_path, and tables of any name in it.
			testdb.Exec(t, conn, "RESET ROLE; RESET search_path; CREATE TEMP TABLE outbox_inserted (id text)")
			testdb.Exec(t, conn, "INSERT INTO relay.outbox_events (event_type, payload) VALUES ('a', '1')")
			if heard := ears.heard(t); len(heard) != 1 {
				t.Errorf("heard %q beside a table of the same name", heard)
			}
		})
	}
}

// TestManyWriters: every event committed while no relay polls is heard, exactly once.
func TestManyWriters(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn, ears := testdb.Connect(t, url), listen(t, url, "public")
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	const writers, each = 8, 50
	results := make(chan error, writers)
	for range writers {
		writer := testdb.Connect(t, url)
		go func() {
			for range each {
				if _, err := writer.Exec(t.Context(), insertOne); err != nil {
					results <- err
					return
				}
			}
			results <- nil
		}()
	}
	for range writers {
		if err := <-results; err != nil {
			t.Fatal(err)
		}
	}
	heard := ears.heard(t)
	slices.Sort(heard)
	if n := len(slices.Compact(heard)); n != writers*each {
		t.Errorf("heard of %d events, want %s", n, fmt.Sprint(writers*each))
	}
}
