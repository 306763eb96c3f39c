package stream

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// log is a database with an outbox_events that is read, seen by its administrator.
type log struct {
	testing.TB
	url  string
	conn *pgx.Conn // the administrator's
}

func newLog(tb testing.TB) *log {
	tb.Helper()
	return newLogAt(tb, testenv.Database(tb))
}

func newLogAt(tb testing.TB, url string) *log {
	tb.Helper()
	l := &log{TB: tb, url: url}
	l.conn = l.dial()
	// No bell: it keeps transactions from being prepared.
	if _, err := outboxsql.Migrate(tb.Context(), l.conn, "public", outboxsql.BellOff); err != nil {
		tb.Fatal(err)
	}
	l.exec(`DROP INDEX outbox_events_fresh`) // as in a stream
	return l
}

// dial opens a writer's connection.
func (l *log) dial() *pgx.Conn {
	l.Helper()
	conn, err := pgx.Connect(l.Context(), l.url)
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { store.Close(context.WithoutCancel(l.Context()), conn) })
	return conn
}

// relay opens a connection as the relay does.
func (l *log) relay() *pgx.Conn {
	l.Helper()
	cfg, err := pgx.ParseConfig(l.url)
	if err != nil {
		l.Fatal(err)
	}
	conn, err := (&store.Connector{Config: cfg, Schema: "public"}).Connect(l.Context(), "stream")
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { store.Close(context.WithoutCancel(l.Context()), conn) })
	return conn
}

func (l *log) exec(query string, args ...any) {
	l.Helper()
	l.on(l.conn, query, args...)
}

// on runs a statement on a connection.
func (l *log) on(conn *pgx.Conn, query string, args ...any) {
	l.Helper()
	if _, err := conn.Exec(l.Context(), query, args...); err != nil {
		l.Fatalf("%s: %v", query, err)
	}
}

func list[T any](l *log, conn *pgx.Conn, query string, args ...any) []T {
	l.Helper()
	rows, err := conn.Query(l.Context(), query, args...)
	if err != nil {
		l.Fatalf("%s: %v", query, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		l.Fatalf("%s: %v", query, err)
	}
	return all
}

func one[T any](l *log, conn *pgx.Conn, query string, args ...any) T {
	l.Helper()
	all := list[T](l, conn, query, args...)
	if len(all) != 1 {
		l.Fatalf("%s: %d rows", query, len(all))
	}
	return all[0]
}

// tail is a reader of a log and what it needs.
type tail struct {
	*log
	*Reader
	w  *Witnesses
	on *pgx.Conn
}

func (l *log) tail(head int64, open Ranges) *tail {
	l.Helper()
	w := NewWitnesses()
	return &tail{l, NewReader(head, open, w), w, l.relay()}
}

// read reads, and returns the ids.
func (t *tail) read(q Query) (ids []int64, b Batch) {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 1000
	}
	b, err := t.Read(t.Context(), t.on, q)
	if err != nil {
		t.Fatal(err)
	}
	ids = []int64{}
	for i := range b.Events {
		ids = append(ids, b.Events[i].ID)
	}
	return ids, b
}

// look looks at once.
func (t *tail) look() {
	t.Helper()
	t.Looked(t.lookOnly())
}

// lookOnly looks, without applying the look to the reader.
func (t *tail) lookOnly() *Look {
	t.Helper()
	t.w.next = t.w.next.Add(-time.Hour)
	look, err := t.w.Look(t.Context(), t.on)
	if err != nil {
		t.Fatal(err)
	}
	return look
}

// expect reads, and fails the test unless it gets these ids and leaves these gaps.
func (t *tail) expect(what, gaps string, want ...int64) {
	t.Helper()
	ids, _ := t.read(Query{})
	if !slices.Equal(ids, want) || t.Gaps().String() != gaps {
		t.Errorf("%s: read %v and left %v, want %v and %s", what, ids, t.Gaps(), want, gaps)
	}
}

// insert inserts an event of an aggregate.
const insert = `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) VALUES ('a', 'order', '1', '{}')`
