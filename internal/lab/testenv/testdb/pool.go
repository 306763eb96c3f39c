package testdb

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Pool opens a pool on the database of a URL, after some changes of its configuration. The end of the test closes it.
func Pool(tb testing.TB, url string, changes ...func(*pgxpool.Config)) *pgxpool.Pool {
	tb.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		tb.Fatal(err)
	}
	for _, change := range changes {
		change(cfg)
	}

	pool, err := pgxpool.NewWithConfig(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}

	tb.Cleanup(pool.Close)
	return pool
}

// InSchema makes unqualified names in statements refer to a schema.
func InSchema(schema string) func(*pgxpool.Config) {
	return func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["search_path"] = pgx.Identifier{schema}.Sanitize()
	}
}

// Begin begins a transaction. The end of the test rolls it back unless it has ended.
func Begin(tb testing.TB, pool *pgxpool.Pool, options pgx.TxOptions) pgx.Tx {
	tb.Helper()
	tx, err := pool.BeginTx(tb.Context(), options)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(tb.Context())) })
	return tx
}

// Partitions runs a test with plain and with partitioned tables, which open makes.
func Partitions[D any](t *testing.T, open func(tb testing.TB, partitioned bool) D, test func(t *testing.T, d D)) {
	t.Helper()
	for name, partitioned := range map[string]bool{"plain": false, "partitioned": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t, partitioned))
		})
	}
}

// SQLState returns the code of an error of PostgreSQL, "" for another error.
func SQLState(err error) string {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		return refused.Code
	}
	return ""
}
