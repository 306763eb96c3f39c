package relaytest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

// failsOnce is a destination that fails each event at the first attempt.
type failsOnce chan int64

func (f failsOnce) Deliver(_ context.Context, e *delivery.Event) error {
	if e.Attempt == 1 {
		return errors.New("no")
	}
	f <- e.ID
	return nil
}

// besideOld has a relay deliver events, one after the other, each of them at the second attempt. It returns how many
// entries of an index were read.
func besideOld(t *testing.T, pool *pgxpool.Pool, events int, index string) int64 {
	t.Helper()
	to := make(failsOnce, events)
	relay, err := notifyd.New(pool, notifyd.Config{PollInterval: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	lane := delivery.Lane{Backoff: delivery.Backoff{Initial: time.Millisecond, Max: time.Millisecond, Multiplier: 1}}
	if err := relay.Handle("*", notifyd.Destination{Name: "orders", Handler: to, Lane: lane}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()

	for range events {
		testdb.Exec(t, pool, `INSERT INTO outbox_events (event_type, payload) VALUES ('a', '{}')`)
		<-to
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}

	pool.Reset()
	testenv.Await(t, "the end of the relay's sessions, which then report what they have read", func() bool {
		return testdb.One[int64](t, pool, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle in transaction'`) == 0
	})
	return testdb.One[int64](t, pool, `SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = $1`, index)
}

// TestFinishedRetriesOfOldSnapshot: an old snapshot keeps the index entries of 200,000 finished retries. The relay does not
// read all of them in each search for due retries.
func TestFinishedRetriesOfOldSnapshot(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const finished, events = 200_000, 30
	pool := streamPool(t)
	testdb.Exec(t, pool, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state, available_at)
		SELECT -i, 'orders', 'a', 'retry', now() - i * interval '1 millisecond' FROM generate_series(1, $1::int) AS i`, finished)
	old := testdb.Begin(t, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	testdb.Exec(t, old, `SELECT count(*) FROM outbox_deliveries`)
	testdb.Exec(t, pool, `DELETE FROM outbox_deliveries`)

	read := besideOld(t, pool, events, "outbox_deliveries_due")
	if read > events*finished/2 { // each search read all of them twice
		t.Errorf("%d index entries were read for %d retries, and %d are of finished ones", read, events, finished)
	}
}

// TestUncommittedEventsAreNotReadAgain: a transaction with 200,000 events stays open. The relay does not read all of them
// in each read of new events.
func TestUncommittedEventsAreNotReadAgain(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const uncommitted, events = 200_000, 30
	pool := streamPool(t)
	open := testdb.Begin(t, pool, pgx.TxOptions{})
	testdb.Exec(t, open, `INSERT INTO outbox_events (event_type, payload) SELECT 'a', '{}' FROM generate_series(1, $1::int)`, uncommitted)

	read := besideOld(t, pool, events, "outbox_events_pkey")
	if read > events*uncommitted/2 { // two readers read all of them, several times for each event
		t.Errorf("%d index entries were read for %d events, and %d are uncommitted", read, events, uncommitted)
	}
}
