package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/notifyd/notifyd/outbox"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// patience bounds each wait of a test.
const patience = 2 * time.Minute

// bothTables runs the test with a plain and a partitioned table.
func bothTables(t *testing.T, test func(t *testing.T, pool *pgxpool.Pool)) {
	t.Helper()
	for _, kind := range []string{"plain", "partitioned"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			pool := database(t, pgx.QueryExecModeCacheStatement)
			if kind == "partitioned" {
				if err := pool.AcquireFunc(t.Context(), func(c *pgxpool.Conn) error {
					return outboxsql.Partition(t.Context(), c.Conn(), "public", outboxsql.PartitionOptions{})
				}); err != nil {
					t.Fatal(err)
				}
			}
			test(t, pool)
		})
	}
}

// keyed is an event that is ignored if its key exists already.
func keyed(key string, payload int) outbox.Event {
	return outbox.Event{Type: "a", Payload: payload, IdempotencyKey: key, IgnoreDuplicate: true}
}

// expect fails the test unless these are the events, as key=payload.
func expect(t *testing.T, pool *pgxpool.Pool, want ...string) {
	t.Helper()
	var got []string
	for _, e := range read(t, pool, "public") {
		got = append(got, e.Key+"="+e.Payload)
	}
	if !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
}

func mustBeDuplicate(t *testing.T, err error) {
	t.Helper()
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "23505" || pg.ConstraintName != "outbox_events_idempotency" {
		t.Errorf("%v, want a unique violation", err)
	}
}

// TestIgnoreDuplicate: the transaction goes on and commits for each way to write,
// and a duplicate without the option is still refused, in the same transaction
// too.
func TestIgnoreDuplicate(t *testing.T) {
	t.Parallel()
	bothTables(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		ctx := t.Context()
		conn, err := pool.Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		// The lock is that of a relay that listens: without one, the trigger is silent.
		if _, err := conn.Exec(ctx, "LISTEN outbox_events; SELECT pg_advisory_lock_shared(1853122163, hashtext('outbox_events'))"); err != nil {
			t.Fatal(err)
		}
		for way, write := range writers(pool) {
			if _, err := pool.Exec(ctx, "DELETE FROM outbox_events"); err != nil {
				t.Fatal(err)
			}
			for i, events := range [][]outbox.Event{
				{keyed("k", 1)},
				{keyed("k", 2)},
				{keyed("k", 3), keyed("l", 4), keyed("m", 5), keyed("l", 6)},
			} {
				if err := write(ctx, "public", nil, events...); err != nil {
					t.Errorf("%s, call %d: %v", way, i, err)
				}
			}
			expect(t, pool, "k=1", "l=4", "m=5")
		}
		// Only events that were written notify: three for each way, and a last one.
		var rung []string
		if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			return outbox.Write(ctx, tx, keyed("k", 7), keyed("last", 8))
		}); err != nil {
			t.Fatal(err)
		}
		var last string
		if err := pool.QueryRow(ctx, "SELECT id::text FROM outbox_events WHERE idempotency_key = 'last'").Scan(&last); err != nil {
			t.Fatal(err)
		}
		wait, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		for !slices.Contains(rung, last) {
			n, err := conn.Conn().WaitForNotification(wait)
			if err != nil {
				t.Fatalf("after %v: %v", rung, err)
			}
			rung = append(rung, n.Payload)
		}
		if want := 3*len(writers(pool)) + 1; len(rung) != want {
			t.Errorf("notified of %v, want %d events", rung, want)
		}
	})
}

// TestIgnoreDuplicateIsForOneCall: in one transaction, the business goes on after
// an ignored duplicate, and a writer without the option is refused.
func TestIgnoreDuplicateIsForOneCall(t *testing.T) {
	t.Parallel()
	bothTables(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		ctx := t.Context()
		if _, err := pool.Exec(ctx, "CREATE TABLE orders (id int)"); err != nil {
			t.Fatal(err)
		}
		strict := keyed("k", 9)
		strict.IgnoreDuplicate = false
		db := stdlib.OpenDBFromPool(pool)
		defer db.Close() //nolint:errcheck // closes no connection of the pool
		if err := inSQL(ctx, db, func(tx *sql.Tx) error {
			if err := outbox.WriteSQL(ctx, tx, strict); err != nil {
				return err
			}
			for want, events := range [][]outbox.Event{{keyed("k", 1)}, {keyed("l", 2)}, {keyed("m", 3), keyed("k", 4), keyed("n", 5)}} {
				query, args, err := outbox.Statement("public", events...)
				if err != nil {
					return err
				}
				var written int
				if err := tx.QueryRowContext(ctx, query, args...).Scan(&written); err != nil || written != want {
					t.Errorf("wrote %d of %d events, want %d, %v", written, len(events), want, err)
				}
			}
			_, err := tx.ExecContext(ctx, "INSERT INTO orders VALUES (1)")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		mustBeDuplicate(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := outbox.Write(ctx, tx, keyed("k", 6), keyed("o", 7)); err != nil {
				return fmt.Errorf("not ignored: %v", err) //nolint:errorlint // must not pass for the refusal
			}
			return outbox.Write(ctx, tx, strict)
		}))
		// A setting that SQL has made stays.
		if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			var choice string
			if _, err := tx.Exec(ctx, "SET LOCAL notifyd.duplicate = 'ignore'"); err != nil {
				return err
			}
			err := outbox.Write(ctx, tx, keyed("k", 8))
			if err == nil {
				err = tx.QueryRow(ctx, "SHOW notifyd.duplicate").Scan(&choice)
			}
			if choice != "ignore" {
				t.Errorf("the choice became %q", choice)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		expect(t, pool, "k=9", "l=2", "m=3", "n=5")
		var orders int
		if err := pool.QueryRow(ctx, "SELECT count(*) FROM orders").Scan(&orders); err != nil || orders != 1 {
			t.Errorf("%d orders, %v", orders, err)
		}
	})
}

// TestIgnoreDuplicateAtOnce: a second writer waits for the first, and follows its outcome.
func TestIgnoreDuplicateAtOnce(t *testing.T) {
	t.Parallel()
	bothTables(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		ctx := t.Context()
		for _, c := range []struct {
			key            string
			commit, ignore bool
		}{{"1", true, true}, {"2", true, false}, {"3", false, true}, {"4", false, false}} {
			first, err := pool.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer first.Rollback(ctx) //nolint:errcheck // ended below, unless the test fails
			if err := outbox.Write(ctx, first, keyed(c.key, 1)); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() {
				ended <- pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					e := keyed(c.key, 2)
					e.IgnoreDuplicate = c.ignore
					after := outbox.Event{Type: "after", Payload: 3}
					err := outbox.Write(ctx, tx, e)
					if err == nil {
						err = outbox.Write(ctx, tx, after)
					}
					return err
				})
			}()
			waitLocked(t, pool)
			if c.commit {
				err = first.Commit(ctx)
			} else {
				err = first.Rollback(ctx)
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := <-ended; c.commit && !c.ignore {
				mustBeDuplicate(t, err)
			} else if err != nil {
				t.Errorf("%+v: %v", c, err)
			}
		}
		expect(t, pool, "1=1", "<null>=3", "2=1", "3=2", "<null>=3", "4=2", "<null>=3")
	})
}

// waitLocked waits until a session of the database waits for a lock.
func waitLocked(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		var yes bool
		if err := pool.QueryRow(t.Context(), `SELECT count(*) > 0 FROM pg_stat_activity
			WHERE wait_event_type = 'Lock' AND datname = current_database()`).Scan(&yes); err != nil {
			t.Fatal(err)
		}
		if yes {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the second writer does not wait for the first")
		}
	}
}

// TestIgnoreDuplicateMistakes: invalid combinations are refused, with the cure.
func TestIgnoreDuplicateMistakes(t *testing.T) {
	t.Parallel()
	strict := keyed("l", 1)
	strict.IgnoreDuplicate = false
	for want, events := range map[string][]outbox.Event{
		"event 1: invalid event: ignore duplicate is false, but true for event 0: write them with two calls": {keyed("k", 1), strict},
		"event 1: invalid event: ignore duplicate is true, but false for event 0: write them with two calls": {{Type: "a", Payload: 1}, keyed("k", 1)},
		"event 0: invalid event: ignore duplicate without an idempotency key: set a key":                     {keyed("", 1)},
	} {
		query, _, err := outbox.Statement("public", events...)
		if !errors.Is(err, outbox.ErrInvalid) || !strings.HasPrefix(err.Error(), want) || query != "" {
			t.Errorf("%q, %v, want %q", query, err, want)
		}
	}
}
