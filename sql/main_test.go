package outboxsql_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// connect opens a connection that is closed at the end of the test.
func connect(tb testing.TB, url string) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close(context.WithoutCancel(tb.Context())) })
	return conn
}

func exec(tb testing.TB, conn *pgx.Conn, query string, args ...any) {
	tb.Helper()
	if _, err := conn.Exec(tb.Context(), query, args...); err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
}

func value[T any](tb testing.TB, conn *pgx.Conn, query string, args ...any) T {
	tb.Helper()
	var v T
	if err := conn.QueryRow(tb.Context(), query, args...).Scan(&v); err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
	return v
}

func values[T any](tb testing.TB, conn *pgx.Conn, query string, args ...any) []T {
	tb.Helper()
	rows, err := conn.Query(tb.Context(), query, args...)
	if err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
	return list
}

// migrate migrates and returns the versions that were applied.
func migrate(tb testing.TB, conn *pgx.Conn, schema string, bell outboxsql.Bell) []outboxsql.Version {
	tb.Helper()
	applied, err := outboxsql.Migrate(tb.Context(), conn, schema, bell)
	if err != nil {
		tb.Fatal(err)
	}
	return applied
}

func state(tb testing.TB, conn *pgx.Conn, schema string) outboxsql.State {
	tb.Helper()
	s, err := outboxsql.ReadState(tb.Context(), conn, schema)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// role creates a role without privileges, which is dropped at the end of the test. Roles belong to
// the whole server, hence the name of the database in theirs.
func role(tb testing.TB, conn *pgx.Conn) string {
	tb.Helper()
	name := pgx.Identifier{conn.Config().Database + "_r"}.Sanitize()
	exec(tb, conn, "CREATE ROLE "+name)
	tb.Cleanup(func() {
		ctx := context.WithoutCancel(tb.Context())
		if _, err := conn.Exec(ctx, "RESET ROLE; DROP OWNED BY "+name+"; DROP ROLE "+name); err != nil {
			tb.Errorf("drop the role of the test: %v", err)
		}
	})
	return name
}

func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return fmt.Sprint(err)
}
