package integration

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// envOrderFor names the environment variable with the time for which each
	// variant of the tests of the order writes events, such as 5m.
	envOrderFor = "NOTIFYD_TEST_ORDER_FOR"
	// envOrderSeed repeats the random choices of a run.
	envOrderSeed = "NOTIFYD_TEST_ORDER_SEED"

	orderWriters    = 8
	orderAggregates = 50
)

// orderFor returns how long to write for.
func orderFor(t *testing.T, short time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(envOrderFor)
	if text == "" {
		return short
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", envOrderFor, err)
	}
	return d
}

// orderSeed returns the seed of a run and logs it.
func orderSeed(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv(envOrderSeed); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", envOrderSeed, err)
		}
	}
	t.Logf("%s=%d", envOrderSeed, seed)
	return seed
}

// orderConfig returns limits of a relay that provoke much concurrency.
func orderConfig(r *rand.Rand) (cfg notifyd.Config) {
	pick := func(list ...int) int { return list[r.IntN(len(list))] }
	cfg = notifyd.Config{Connections: pick(1, 2, 4), Batch: pick(2, 10, 100, 1000), PollInterval: time.Duration(pick(50, 300, 1000)) * time.Millisecond}
	if r.IntN(5) == 0 {
		cfg.PollingOnly = true
	}
	return cfg
}

// writeInOrder writes random transactions until ctx ends. The events of one
// aggregate are written one transaction after the other, as applications do.
func (e *env) writeInOrder(ctx context.Context, seed uint64) {
	e.t.Helper()
	var writers sync.WaitGroup
	defer writers.Wait()
	for n := range uint64(orderWriters) {
		conn, err := pgx.Connect(e.ctx, e.url)
		if err != nil {
			e.t.Error(err)
			return
		}
		writers.Go(func() {
			defer func() { _ = conn.Close(context.WithoutCancel(e.ctx)) }()
			r := rand.New(rand.NewPCG(seed, n))
			for ctx.Err() == nil {
				if err := writeOnce(e.ctx, conn, r); err != nil {
					e.t.Errorf("writer %d: %v", n, err)
					return
				}
			}
		})
	}
}

// writeOnce is one transaction.
func writeOnce(ctx context.Context, conn *pgx.Conn, r *rand.Rand) error {
	keys := make([]int, 1+r.IntN(5))
	for i := range keys {
		keys[i] = r.IntN(orderAggregates)
	}
	slices.Sort(keys) // against deadlocks
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	pauses := pauseOf(r)
	for i, key := range keys {
		if i == 0 || keys[i-1] != key {
			if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(42, $1)`, key); err != nil {
				return err
			}
		}
		id := any(strconv.Itoa(key))
		if r.IntN(10) == 0 {
			id = nil // nothing to keep
		}
		rows := 1
		if r.IntN(20) == 0 {
			rows = 20 // in one statement
		}
		typ := []string{"fast", "stream", "strict", "late", "both", "both"}[r.IntN(6)]
		var delay *time.Duration
		if n := r.IntN(10); n == 0 || n < 5 && typ == "late" {
			d := time.Duration(r.IntN(2000)) * time.Millisecond
			delay = &d
		}
		if _, err := tx.Exec(ctx, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, available_at)
			SELECT $1, 't', $2, '1', clock_timestamp() + $4::interval FROM generate_series(1, $3)`, typ, id, rows, delay); err != nil {
			return err
		}
		time.Sleep(pauses()) //nolint:forbidigo // the other work of the transaction
	}
	if r.IntN(8) == 0 {
		return tx.Rollback(ctx)
	}
	return tx.Commit(ctx)
}

// pauseOf returns the time that a transaction stays open.
func pauseOf(r *rand.Rand) func() time.Duration {
	switch x := r.IntN(400); {
	case x == 0:
		long := 2 * time.Second
		return func() (d time.Duration) { d, long = long, 0; return d }
	case x < 300:
		return func() time.Duration { return 0 }
	}
	return func() time.Duration { return time.Duration(r.IntN(50)) * time.Millisecond }
}

// TestOrderWhileWritten: whatever transactions write to a stream concurrently,
// and however the destinations behave, no event overtakes an earlier one of its
// aggregate.
func TestOrderWhileWritten(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, relays := range []int{1, 2} {
		t.Run(strconv.Itoa(relays), func(t *testing.T) {
			t.Parallel()
			seed := orderSeed(t)
			e, o := newEnvIn(t, outboxsql.ModeStream), newOrderObserver(seed)
			r := rand.New(rand.NewPCG(seed, 1000))
			for n := range relays {
				name := strconv.Itoa(n)
				e.relay(func(r *notifyd.Relay) {
					handleInOrder(t, r, func(ctx context.Context, dest string, e *delivery.Event) error {
						return o.deliver(ctx, name, dest, e.ID, e.Attempt)
					})
				}, orderConfig(r))
			}
			ctx, cancel := context.WithTimeout(t.Context(), orderFor(t, 6*time.Second))
			defer cancel()
			stop := o.operate(t, e)
			e.writeInOrder(ctx, seed)
			o.untilOrdered(e, stop)
			o.check(t, e)
			o.checkDelayed(t, e)
		})
	}
}
