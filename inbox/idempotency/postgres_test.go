package idempotency_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/inbox/idempotency"
	"github.com/notifyd/notifyd/inbox/idempotency/internal/storetest"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

func TestPostgres(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]pgx.QueryExecMode{
		"cached": pgx.QueryExecModeCacheStatement, "exec": pgx.QueryExecModeExec, "simple": pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := testdb.Pool(t, testenv.Database(t), func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			if _, err := pool.Exec(t.Context(), `CREATE SCHEMA "odd ""one; :schema"`); err != nil {
				t.Fatal(err)
			}
			const schema = `odd "one; :schema`
			errs := make(chan error)
			for range 4 {
				go func() { errs <- idempotency.CreatePostgres(t.Context(), pool, schema) }()
			}
			for range 4 {
				if err := <-errs; err != nil {
					t.Fatal(err)
				}
			}
			s, err := idempotency.NewPostgres(pool, schema)
			if err != nil {
				t.Fatal(err)
			}
			storetest.Run(t, s)
		})
	}
}

// TestPostgresClock: the time zone and the clock of a session do not matter.
func TestPostgresClock(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testenv.Database(t), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["timezone"] = "Pacific/Kiritimati"
		c.ConnConfig.RuntimeParams["datestyle"] = "German"
		c.ConnConfig.RuntimeParams["intervalstyle"] = "sql_standard"
	})
	if err := idempotency.CreatePostgres(t.Context(), pool, ""); err != nil {
		t.Fatal(err)
	}
	s, err := idempotency.NewPostgres(pool, "")
	if err != nil {
		t.Fatal(err)
	}
	storetest.Run(t, s)
}

func TestPostgresMistakes(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testenv.Database(t))
	for _, schema := range []string{"a\x00", strings.Repeat("x", 64)} {
		if _, err := idempotency.NewPostgres(pool, schema); err == nil {
			t.Errorf("schema %.10q", schema)
		}
		if err := idempotency.CreatePostgres(t.Context(), pool, schema); err == nil {
			t.Errorf("create in %.10q", schema)
		}
	}
	s, err := idempotency.NewPostgres(pool, "")
	if err != nil {
		t.Fatal(err)
	}
	c := idempotency.Claim{Key: "k", Token: "t", Fingerprint: "f"}
	if _, err := s.Begin(t.Context(), c, time.Minute); !errors.Is(err, idempotency.ErrUnusable) || !strings.Contains(err.Error(), "idempotency.CreatePostgres") {
		t.Errorf("without a table: %v", err)
	}
}

func TestPurge(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testenv.Database(t))
	if err := idempotency.CreatePostgres(t.Context(), pool, ""); err != nil {
		t.Fatal(err)
	}
	s, err := idempotency.NewPostgres(pool, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `INSERT INTO idempotency_keys SELECT n::text, 't', 'f', now() + (n - 10.5) * interval '1 hour' FROM generate_series(1, 100) n`); err != nil {
		t.Fatal(err)
	}
	if n, done, err := s.Purge(t.Context(), 3, 1); n != 3 || done || err != nil {
		t.Errorf("with a budget: %d, %v, %v", n, done, err)
	}
	if n, done, err := s.Purge(t.Context(), 3, 0); n != 7 || !done || err != nil {
		t.Errorf("in batches: %d, %v, %v", n, done, err)
	}
	if n, done, err := s.Purge(t.Context(), 0, 0); n != 0 || !done || err != nil {
		t.Errorf("nothing: %d, %v, %v", n, done, err)
	}
	var left int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM idempotency_keys`).Scan(&left); err != nil || left != 90 {
		t.Errorf("%d rows are left, %v", left, err)
	}
	for _, batch := range []int{-1, 100_001} {
		if _, _, err := s.Purge(t.Context(), batch, 0); err == nil {
			t.Errorf("a batch of %d", batch)
		}
	}
}
