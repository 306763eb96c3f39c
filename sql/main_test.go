package outboxsql_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// migrate migrates and returns the versions that were applied.
func migrate(tb testing.TB, conn *pgx.Conn, schema string, notify outboxsql.NotifyMode) []outboxsql.Version {
	tb.Helper()
	applied, err := outboxsql.Migrate(tb.Context(), conn, schema, outboxsql.MigrateOptions{Notify: notify})
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

// roles counts the roles of tests.
var roles atomic.Int64

// role creates a role without privileges, which is dropped at the end of the test. Roles belong to
// the whole server, hence the name of the database in theirs.
func role(tb testing.TB, conn *pgx.Conn) string {
	tb.Helper()
	name := pgx.Identifier{fmt.Sprint(conn.Config().Database, "_r", roles.Add(1))}.Sanitize()
	testdb.Exec(tb, conn, "CREATE ROLE "+name)
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
