package outboxtest_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/outbox"
	"github.com/notifyd/notifyd/outbox/outboxtest"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// ids returns the aggregate ids of the events of a source, as its assertions and a relay get them.
func ids(t *testing.T, src outboxtest.Source) (all []string) {
	t.Helper()
	for _, e := range src.Events(t) {
		all = append(all, e.AggregateID)
	}
	var handled []string
	var relay outboxtest.Relay
	relay.Handle(t, "all", "*", delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		handled = append(handled, e.AggregateID)
		return nil
	}))
	if _, err := relay.Deliver(t, src); err != nil || !slices.Equal(handled, all) {
		t.Errorf("the relay handled %q, the source has %q: %v", handled, all, err)
	}
	return all
}

// A source that reads through a transaction has what that transaction has written: nothing that others have committed, before or
// meanwhile, with ids below or above its own.
func TestOwnEvents(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead} {
		for _, partitioned := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, partitions %v", level, partitioned), func(t *testing.T) {
				t.Parallel()
				pool := database(t, "public", outboxsql.ModeQueue)
				if partitioned {
					partition(t, pool)
				}
				commit(t, pool, order("a", "before", 0))
				tx := testdb.Begin(t, pool, pgx.TxOptions{IsoLevel: level})
				src := outboxtest.Pgx(tx)
				if got := ids(t, src); len(got) > 0 {
					t.Errorf("before the transaction has written: %q", got)
				}
				other := testdb.Begin(t, pool, pgx.TxOptions{}) // older than what follows, and committed later
				write(t, other, order("a", "other", 0))
				commit(t, pool, order("a", "meanwhile", 0))
				write(t, tx, order("a", "own", 0))
				nest(t, tx, func(inner pgx.Tx) { write(t, inner, order("a", "released", 0)) }, pgx.Tx.Commit)
				nest(t, tx, func(inner pgx.Tx) { write(t, inner, order("a", "undone", 0)) }, pgx.Tx.Rollback)
				commit(t, pool, order("a", "later", 0))
				if err := other.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				open, err := tx.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				write(t, open, order("a", "open", 0))
				commit(t, pool, order("a", "last", 0))
				for name, src := range map[string]outboxtest.Source{"transaction": src, "savepoint": outboxtest.Pgx(open)} {
					if got, want := ids(t, src), []string{"own", "released", "open"}; !slices.Equal(got, want) {
						t.Errorf("through the %s %q, want %q", name, got, want)
					}
				}
				if err := tx.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got, want := ids(t, outboxtest.Pgx(pool)), []string{"before", "other", "meanwhile", "later", "last"}; !slices.Equal(got, want) {
					t.Errorf("through the pool %q, want %q", got, want)
				}
			})
		}
	}
}

// The same through database/sql.
func TestOwnEventsOfSQL(t *testing.T) {
	t.Parallel()
	pool := database(t, "public", outboxsql.ModeQueue)
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close() //nolint:errcheck // the pool reports it
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // nothing is kept
	if err := outbox.WriteSQL(t.Context(), tx, order("a", "own", 0)); err != nil {
		t.Fatal(err)
	}
	commit(t, pool, order("a", "other", 0))
	if got := ids(t, outboxtest.SQL(tx)); !slices.Equal(got, []string{"own"}) {
		t.Errorf("through the transaction %q", got)
	}
	if got := ids(t, outboxtest.SQL(db)); !slices.Equal(got, []string{"other"}) {
		t.Errorf("through the pool %q", got)
	}
}

// Tests that share the tables, each in its transaction, at the same time.
func TestOwnEventsInParallel(t *testing.T) {
	t.Parallel()
	pool := database(t, "public", outboxsql.ModeQueue)
	for i := range 8 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			id := fmt.Sprint(i)
			for range 5 {
				tx := testdb.Begin(t, pool, pgx.TxOptions{})
				write(t, tx, order("a", id, 0))
				commit(t, pool, order("a", "committed by "+id, 0))
				nest(t, tx, func(inner pgx.Tx) { write(t, inner, order("a", id, 0)) }, pgx.Tx.Commit)
				if got := ids(t, outboxtest.Pgx(tx)); !slices.Equal(got, []string{id, id}) {
					t.Errorf("%s sees %q", id, got)
				}
				if err := tx.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// nest writes in a savepoint, and ends it.
func nest(t *testing.T, tx pgx.Tx, write func(inner pgx.Tx), end func(inner pgx.Tx, ctx context.Context) error) {
	t.Helper()
	inner, err := tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	write(inner)
	if err := end(inner, t.Context()); err != nil {
		t.Fatal(err)
	}
}

func partition(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	err := pool.AcquireFunc(t.Context(), func(c *pgxpool.Conn) error {
		return outboxsql.Partition(t.Context(), c.Conn(), "public", outboxsql.PartitionOptions{})
	})
	if err != nil {
		t.Fatal(err)
	}
}
