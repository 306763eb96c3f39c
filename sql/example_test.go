package outboxsql_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// A program makes or updates the tables when it starts.
func ExampleMigratePool() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, testenv.ExampleDatabase(ctx)) // in a program: os.Getenv("DATABASE_URL")
	if err != nil {
		panic(err)
	}
	defer pool.Close()

	if err := outboxsql.MigratePool(ctx, pool); err != nil {
		panic(err)
	}

	fmt.Println(outboxsql.Check(ctx, pool, outboxsql.DefaultSchema))
	// Output: <nil>
}

// The tables of another schema, as a stream.
func ExampleMigrate() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, testenv.ExampleDatabase(ctx))
	if err != nil {
		panic(err)
	}
	defer pool.Close()

	applied, err := outboxsql.Migrate(ctx, pool, "shop", outboxsql.MigrateOptions{Mode: outboxsql.ModeStream})
	if err != nil {
		panic(err)
	}

	state, err := outboxsql.ReadState(ctx, pool, "shop")
	if err != nil {
		panic(err)
	}
	fmt.Println(len(applied), state.Mode)
	// Output: 1 stream
}
