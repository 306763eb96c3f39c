// Package testdb makes databases with the tables of an outbox, for tests.
package testdb

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Tables describes the tables of a database.
type Tables struct {
	// Schema is "public" where it is empty.
	Schema string
	// Trigger is as in [outboxsql.Migrate]; empty is NotifyAuto.
	Notify outboxsql.NotifyMode
	// Mode is the mode of the tables, empty for a queue.
	Mode outboxsql.Mode
	// Partitioned makes partitions of one day each.
	Partitioned bool
}

// URL creates a database with these tables for this test alone, and returns its URL.
func URL(tb testing.TB, tables Tables) string {
	tb.Helper()
	url := testenv.Copy(tb, fmt.Sprintf("%+v", tables), tables.make)
	Adopt(tb, url, cmp.Or(tables.Schema, outboxsql.DefaultSchema))
	return url
}

// Adopt makes a database from a template the home of its outbox.
func Adopt(tb testing.TB, url, schema string) {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), url)
	if err != nil {
		tb.Fatal(err)
	}
	defer store.Close(tb.Context(), conn)

	update := strings.ReplaceAll(`UPDATE {}.outbox_mode SET home = {}.outbox_place(tableoid)`, "{}", pgx.Identifier{schema}.Sanitize())
	Exec(tb, conn, update)
}

// make makes the tables in a database.
func (t Tables) make(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer store.Close(ctx, conn)

	schema := cmp.Or(t.Schema, outboxsql.DefaultSchema)

	options := outboxsql.MigrateOptions{Notify: cmp.Or(t.Notify, outboxsql.NotifyAuto)}
	if _, err := outboxsql.Migrate(ctx, conn, schema, options); err != nil {
		return err
	}

	if t.Partitioned {
		if err := outboxsql.Partition(ctx, conn, schema, outboxsql.PartitionOptions{}); err != nil {
			return err
		}
	}

	if t.Mode == "" || t.Mode == outboxsql.ModeQueue {
		return nil
	}
	return outboxsql.SetMode(ctx, conn, schema, t.Mode, outboxsql.ModeOptions{})
}

// DB is a database with the tables in schema public, seen by its administrator. The test fails if a statement fails.
type DB struct {
	testing.TB
	URL  string
	Conn *pgx.Conn // of the administrator
}

// New makes a database with these tables, which must be in schema public.
func New(tb testing.TB, tables Tables) *DB {
	tb.Helper()
	return open(tb, URL(tb, tables))
}

// At makes the tables in the database of a URL, on a server that only this test uses.
func At(tb testing.TB, url string, tables Tables) *DB {
	tb.Helper()
	if err := tables.make(tb.Context(), url); err != nil {
		tb.Fatal(err)
	}
	return open(tb, url)
}

func open(tb testing.TB, url string) *DB {
	tb.Helper()
	d := &DB{TB: tb, URL: url}
	d.Conn = d.Dial()
	return d
}

// Dial opens a connection of an application. The end of the test closes it.
func (d *DB) Dial() *pgx.Conn {
	d.Helper()
	return Connect(d, d.URL)
}

// Connector returns a connector of a relay.
func (d *DB) Connector() *store.Connector {
	d.Helper()
	cfg, err := pgx.ParseConfig(d.URL)
	if err != nil {
		d.Fatal(err)
	}
	return &store.Connector{Config: cfg, Schema: "public"}
}

// Relay opens a connection as a relay does. The end of the test closes it.
func (d *DB) Relay() *pgx.Conn {
	d.Helper()
	conn, err := d.Connector().Connect(d.Context(), "test")
	if err != nil {
		d.Fatal(err)
	}
	return closed(d, conn)
}

// Exec runs a statement of the administrator.
func (d *DB) Exec(query string, args ...any) {
	d.Helper()
	Exec(d, d.Conn, query, args...)
}

// On runs a statement on a connection.
func (d *DB) On(conn *pgx.Conn, query string, args ...any) {
	d.Helper()
	Exec(d, conn, query, args...)
}

// Insert writes events of a type, and returns their ids.
func (d *DB) Insert(eventType string, n int) []int64 {
	d.Helper()
	return List[int64](d, d.Conn, `WITH i AS (INSERT INTO outbox_events (event_type, payload)
		SELECT $1, to_json(i) FROM generate_series(1, $2::int) i RETURNING id) SELECT id FROM i ORDER BY id`, eventType, n)
}

// Connect opens a connection. The end of the test closes it.
func Connect(tb testing.TB, url string) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), url)
	if err != nil {
		tb.Fatal(err)
	}
	return closed(tb, conn)
}

func closed(tb testing.TB, conn *pgx.Conn) *pgx.Conn {
	tb.Helper()
	tb.Cleanup(func() { store.Close(context.WithoutCancel(tb.Context()), conn) })
	return conn
}

// Querier is a connection, a transaction or a pool.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Exec runs a statement.
func Exec(tb testing.TB, q Querier, query string, args ...any) {
	tb.Helper()
	if _, err := q.Exec(tb.Context(), query, args...); err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
}

// List returns the only column of a query.
func List[T any](tb testing.TB, q Querier, query string, args ...any) []T {
	tb.Helper()
	rows, err := q.Query(tb.Context(), query, args...)
	if err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
	return all
}

// One returns the only value of a query.
func One[T any](tb testing.TB, q Querier, query string, args ...any) T {
	tb.Helper()
	all := List[T](tb, q, query, args...)
	if len(all) != 1 {
		tb.Fatalf("%s: %d rows", query, len(all))
	}
	return all[0]
}

// Member makes the session of conn a relay of a stream that leases these destinations forever. Running relays remove it.
func Member(tb testing.TB, conn *pgx.Conn, owner int64, destinations ...string) {
	tb.Helper()
	Exec(tb, conn, `INSERT INTO outbox_members (owner, renewals, alive_until, pid, wants) VALUES ($1, 1, 'infinity', pg_backend_pid(), $2)
		ON CONFLICT (owner) DO UPDATE SET wants = excluded.wants`, owner, append([]string{}, destinations...))
	Exec(tb, conn, `UPDATE outbox_positions SET owner = $1, epoch = epoch + 1 WHERE destination = ANY($2)`, owner, append([]string{}, destinations...))
}
