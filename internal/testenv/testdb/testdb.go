// Package testdb makes databases with the tables of an outbox, for tests.
package testdb

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// DB is a database with the tables in schema public, seen by its administrator. It fails the test where a statement fails.
type DB struct {
	testing.TB
	URL  string
	Conn *pgx.Conn // of the administrator
}

// At makes the tables in the database of a URL.
func At(tb testing.TB, url string, bell outboxsql.Bell) *DB {
	tb.Helper()
	d := &DB{TB: tb, URL: url}
	d.Conn = d.Dial()
	if _, err := outboxsql.Migrate(tb.Context(), d.Conn, "public", bell); err != nil {
		tb.Fatal(err)
	}
	return d
}

// Dial opens a connection of an application. The end of the test closes it.
func (d *DB) Dial() *pgx.Conn {
	d.Helper()
	conn, err := pgx.Connect(d.Context(), d.URL)
	if err != nil {
		d.Fatal(err)
	}
	return d.closed(conn)
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
	return d.closed(conn)
}

func (d *DB) closed(conn *pgx.Conn) *pgx.Conn {
	d.Cleanup(func() { store.Close(context.WithoutCancel(d.Context()), conn) })
	return conn
}

// Exec runs a statement of the administrator.
func (d *DB) Exec(query string, args ...any) {
	d.Helper()
	d.On(d.Conn, query, args...)
}

// On runs a statement on a connection.
func (d *DB) On(conn *pgx.Conn, query string, args ...any) {
	d.Helper()
	if _, err := conn.Exec(d.Context(), query, args...); err != nil {
		d.Fatalf("%s: %v", query, err)
	}
}

// List returns the only column of a query.
func List[T any](d *DB, conn *pgx.Conn, query string, args ...any) []T {
	d.Helper()
	rows, err := conn.Query(d.Context(), query, args...)
	if err != nil {
		d.Fatalf("%s: %v", query, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		d.Fatalf("%s: %v", query, err)
	}
	return all
}

// One returns the only value of a query.
func One[T any](d *DB, conn *pgx.Conn, query string, args ...any) T {
	d.Helper()
	all := List[T](d, conn, query, args...)
	if len(all) != 1 {
		d.Fatalf("%s: %d rows", query, len(all))
	}
	return all[0]
}
