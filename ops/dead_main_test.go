package ops_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// lettersDB is a database with the tables in a schema that is not the default one.
type lettersDB struct {
	testing.TB
	pool  *pgxpool.Pool
	store *ops.Client
}

const letterSchema = `Odd "shop"`

func newLetters(tb testing.TB, deleteEvents bool) *lettersDB {
	tb.Helper()
	pool := testdb.Pool(tb, testdb.URL(tb, testdb.Tables{Schema: letterSchema}), testdb.InSchema(letterSchema))
	store, err := ops.New(pool, ops.Config{Schema: letterSchema, DeleteEvents: deleteEvents})
	if err != nil {
		tb.Fatal(err)
	}
	return &lettersDB{tb, pool, store}
}

func (d *lettersDB) exec(sql string, args ...any) {
	d.Helper()
	testdb.Exec(d, d.pool, sql, args...)
}

// expect fails the test unless the query returns exactly these lines.
func (d *lettersDB) expect(what, sql string, want ...string) {
	d.Helper()
	if got := d.list(sql); fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		d.Errorf("%s: %q, want %q", what, got, want)
	}
}

// newStream is newDB with a stream, plain or partitioned, and a position of mail that is past all
// events.
func newStream(tb testing.TB, deleteEvents, partitioned bool) *lettersDB {
	tb.Helper()
	d := newLetters(tb, deleteEvents)
	if partitioned {
		conn, err := d.pool.Acquire(tb.Context())
		if err != nil {
			tb.Fatal(err)
		}
		defer conn.Release()
		if err := outboxsql.Partition(tb.Context(), conn.Conn(), letterSchema, outboxsql.PartitionOptions{}); err != nil {
			tb.Fatal(err)
		}
	}
	d.exec(`UPDATE outbox_mode SET mode = 'stream'`)
	d.exec(`DROP INDEX outbox_events_fresh`)
	d.exec(`INSERT INTO outbox_positions (destination, head) VALUES ('mail', 1000)`)
	return d
}

// letters writes n events of a stream, whose ids begin with from, and a dead letter for each.
func (d *lettersDB) letters(from, n int, destination string) {
	d.Helper()
	d.exec(`INSERT INTO outbox_events (id, event_type, aggregate_type, aggregate_id, payload)
		SELECT i, 'a', 'order', i, json_build_object('order', i) FROM generate_series($1::int, $1::int + $2::int - 1) i
		ON CONFLICT DO NOTHING`, from, n)
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, error_class, last_error, ordering_key)
		SELECT i, $3, 'a', 'dead', 3, 'event', 'bad', 'order/' || i FROM generate_series($1::int, $1::int + $2::int - 1) i`, from, n, destination)
}

// listen returns a function that waits for a notification.
func (d *lettersDB) listen() func() string {
	d.Helper()
	ear, err := d.pool.Acquire(d.Context())
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(ear.Release)
	if _, err := ear.Exec(d.Context(), "LISTEN "+pgx.Identifier{pgschema.Channel(letterSchema)}.Sanitize()); err != nil {
		d.Fatal(err)
	}
	return func() string {
		d.Helper()
		n, err := ear.Conn().WaitForNotification(d.Context())
		if err != nil {
			d.Fatal(err)
		}
		return n.Payload
	}
}

// bury writes n events, whose ids begin with from, and a dead letter for each.
func (d *lettersDB) bury(from, n int, destination, eventType, problem string) {
	d.Helper()
	d.exec(`INSERT INTO outbox_events (id, event_type, aggregate_type, aggregate_id, payload, state, processed_at)
		SELECT i, $3, 'order', i, json_build_object('order', i), 'done', now() FROM generate_series($1::int, $1::int + $2::int - 1) i
		ON CONFLICT DO NOTHING`, from, n, eventType)
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, error_class, last_error, ordering_key)
		SELECT i, $3, $4, 'dead', 3, 'event', replace($5, '%', i::text), 'order/' || i FROM generate_series($1::int, $1::int + $2::int - 1) i`,
		from, n, destination, eventType, problem)
}

const (
	events     = `SELECT format('%s %s %s', id, state, processed_at IS NOT NULL) FROM outbox_events ORDER BY id`
	deliveries = `SELECT format('%s/%s %s %s r%s %s', event_id, destination, state, attempts, replays, ordering_key)
		FROM outbox_deliveries ORDER BY event_id, destination`
	audit = `SELECT concat_ws(' ', action, actor, event_id, destination, details->>'reason', details->>'replay') FROM outbox_audit ORDER BY id`
)

func ids(letters []ops.DeadLetter) (list []int64) {
	for _, l := range letters {
		list = append(list, l.EventID)
	}
	return list
}
