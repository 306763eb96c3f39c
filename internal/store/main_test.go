package store

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// db is a database with the tables, seen by its administrator.
type db struct {
	testing.TB
	*Connector
	conn *pgx.Conn
}

func newDB(tb testing.TB) *db {
	tb.Helper()
	d := &db{TB: tb}
	url := testenv.Copy(tb, "tables", makeTables)
	var err error
	d.Connector = connector(tb, url)
	if d.conn, err = pgx.Connect(tb.Context(), url); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { Close(context.WithoutCancel(tb.Context()), d.conn) })
	d.exec(`UPDATE outbox_mode SET home = outbox_place(tableoid)`)
	return d
}

func makeTables(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer Close(ctx, conn)
	_, err = outboxsql.Migrate(ctx, conn, "public", outboxsql.MigrateOptions{Notify: outboxsql.NotifyAuto})
	return err
}

func (d *db) exec(query string, args ...any) {
	d.Helper()
	if _, err := d.conn.Exec(d.Context(), query, args...); err != nil {
		d.Fatalf("%s: %v", query, err)
	}
}

// insert inserts n events of a type and returns their ids.
func (d *db) insert(eventType string, n int) []int64 {
	d.Helper()
	return list[int64](d, `WITH i AS (INSERT INTO outbox_events (event_type, payload)
		SELECT $1, to_json(i) FROM generate_series(1, $2::int) i RETURNING id) SELECT id FROM i ORDER BY id`, eventType, n)
}

// expect fails the test unless the query returns exactly these lines.
func (d *db) expect(what, query string, want ...string) {
	d.Helper()
	if got := list[string](d, query); fmt.Sprint(got) != fmt.Sprint(want) {
		d.Errorf("%s: %q, want %q", what, got, want)
	}
}

func list[T any](d *db, query string, args ...any) []T {
	d.Helper()
	rows, err := d.conn.Query(d.Context(), query, args...)
	if err != nil {
		d.Fatalf("%s: %v", query, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		d.Fatalf("%s: %v", query, err)
	}
	return all
}

func one[T any](d *db, query string, args ...any) T {
	d.Helper()
	all := list[T](d, query, args...)
	if len(all) != 1 {
		d.Fatalf("%s: %d rows", query, len(all))
	}
	return all[0]
}

func options() SessionOptions { return SessionOptions{Owner: NewOwner()} }

func (d *db) relaySession(o SessionOptions) *Session {
	k := NewSession(d.Connector, o)
	d.Cleanup(func() { k.Close(context.WithoutCancel(d.Context())) })
	return k
}

// terminate ends the server side of a connection and waits until it is gone.
func (d *db) terminate(c *pgx.Conn) {
	d.Helper()
	if !one[bool](d, `SELECT pg_terminate_backend($1, 60000)`, int64(c.PgConn().PID())) {
		d.Fatal("the session did not end")
	}
}

func connector(tb testing.TB, url string) *Connector {
	tb.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		tb.Fatal(err)
	}
	return &Connector{Config: cfg, Schema: "public"}
}
