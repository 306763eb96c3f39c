// Package shop is a separate program that uses notifyd: it can import, name and match only what its users can.
package shop

import (
	"context"
	"crypto/rand"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// database returns a pool on an empty database, which the end of the test drops.
func database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	url := os.Getenv("DATABASE_URL")
	if url == "" {
		if os.Getenv("NOTIFYD_TEST_REQUIRE") != "" {
			t.Fatal("DATABASE_URL is not set: run make test-outside")
		}
		t.Skip("DATABASE_URL is not set: run make test-outside")
	}
	name := "shop_" + strings.ToLower(rand.Text())
	administer(t.Context(), t, url, "CREATE DATABASE "+name)
	t.Cleanup(func() { administer(context.WithoutCancel(t.Context()), t, url, "DROP DATABASE "+name+" WITH (FORCE)") })
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.Database = name
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func administer(ctx context.Context, t *testing.T, url, statement string) {
	t.Helper()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx) //nolint:errcheck // it has done its work
	if _, err := conn.Exec(ctx, statement); err != nil {
		t.Fatal(err)
	}
}

// migrated returns a pool on a database with the tables in a schema.
func migrated(t *testing.T, schema string, mode outboxsql.Mode) *pgxpool.Pool {
	t.Helper()
	pool := database(t)
	migrate(t, pool, schema, mode)
	return pool
}

func migrate(t *testing.T, pool *pgxpool.Pool, schema string, mode outboxsql.Mode) {
	t.Helper()
	_, err := outboxsql.Migrate(t.Context(), pool, schema, outboxsql.MigrateOptions{Mode: mode})
	if err != nil {
		t.Fatal(err)
	}
}
