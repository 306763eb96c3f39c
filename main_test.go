package notifyd_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// openExample returns a pool on a fresh database with the tables in it, for
// the examples: programs have a database and have run `notifyd migrate`.
func openExample(ctx context.Context) *pgxpool.Pool {
	pool, err := pgxpool.New(ctx, testenv.ExampleDatabase(ctx))
	if err != nil {
		panic(err)
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		panic(err)
	}
	defer conn.Release()
	if _, err := outboxsql.Migrate(ctx, conn.Conn(), outboxsql.DefaultSchema, outboxsql.BellKeep); err != nil {
		panic(err)
	}
	return pool
}
