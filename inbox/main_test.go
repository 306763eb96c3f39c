package inbox_test

import (
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/notifyd/notifyd/inbox"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// database creates a database with the table and a table of effects, and returns
// a pool of each kind.
func database(tb testing.TB) (*pgxpool.Pool, *sql.DB) {
	tb.Helper()
	pool := testdb.Pool(tb, testenv.Database(tb))
	db := stdlib.OpenDBFromPool(pool)
	tb.Cleanup(func() { _ = db.Close() })
	if err := inbox.Create(tb.Context(), pool, ""); err != nil {
		tb.Fatal(err)
	}
	if _, err := pool.Exec(tb.Context(), `CREATE TABLE effects (consumer text, event_id text)`); err != nil {
		tb.Fatal(err)
	}
	return pool, db
}

// count returns the one number that query asks for.
func count(tb testing.TB, pool *pgxpool.Pool, query string, args ...any) int {
	tb.Helper()
	return testdb.One[int](tb, pool, query, args...)
}
