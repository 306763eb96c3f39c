package relaytest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/ops"
)

// finishedOrders creates $1 dead letters with the aggregate or the line that an expression of i makes, and
// lets the stream begin behind them. Without the trigger: it would take most of the time.
func finishedOrders(t *testing.T, pool *pgxpool.Pool, n int, aggregate, key string) {
	t.Helper()
	for _, statement := range []string{
		`ALTER TABLE outbox_deliveries DISABLE TRIGGER outbox_deliveries_fingerprint`,
		`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) SELECT 'order.old', 'order', ` + aggregate + `, '{}' FROM generate_series(1, $1::int) AS i`,
		`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, ordering_key, error_fingerprint)
			SELECT i, 'orders', 'order.old', 'dead', 5, ` + key + `, 'abcdefabcdef' FROM generate_series(1, $1::int) AS i`,
		`ALTER TABLE outbox_deliveries ENABLE TRIGGER outbox_deliveries_fingerprint`,
	} {
		var args []any
		if statement[0] == 'I' {
			args = []any{n}
		}
		if _, err := pool.Exec(t.Context(), statement, args...); err != nil {
			t.Fatal(err)
		}
	}
	beginBehind(t, pool)
}

// beginBehind lets a stream begin behind all of its events.
func beginBehind(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), `TRUNCATE outbox_routes, outbox_positions; UPDATE outbox_mode SET origin_head = (SELECT max(id) FROM outbox_events)`); err != nil {
		t.Fatal(err)
	}
}

// TestManyDeadLettersOfOneLine: 400,000 dead letters of one aggregate, or of one order of all events, delay neither the
// replay of some of them nor live events.
func TestManyDeadLettersOfOneLine(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const dead = 400_000
	t.Run("aggregate", func(t *testing.T) {
		t.Parallel()
		pool := streamPool(t)
		finishedOrders(t, pool, dead, `'1'`, `'order/1'`)
		replayAmongDead(t, pool, dead, false, delivery.Lane{})
		// The stream begins anew. What the first relay has replayed is no longer dead.
		beginBehind(t, pool)
		replayAmongDead(t, pool, dead-replayedOrders, true, delivery.Lane{OnDead: delivery.OnDead{Then: delivery.OnDeadBlock}})
	})
	t.Run("total", func(t *testing.T) {
		t.Parallel()
		pool := streamPool(t)
		finishedOrders(t, pool, dead, `'1'`, `'*'`)
		replayAmongDead(t, pool, dead, false, delivery.Lane{Order: delivery.OrderTotal})
	})
}

const replayedOrders = 300

// replayAmongDead runs a relay, and replays the last ones of the given number of dead letters. What comes later in
// their aggregate is delivered unless they block.
func replayAmongDead(t *testing.T, pool *pgxpool.Pool, dead int, block bool, lane delivery.Lane) {
	t.Helper()
	const live = 300
	got := make(chan int64, replayedOrders+live)
	defer ordersRelay(t, pool, got, lane)()
	writeLive(t, pool, "live", 1)
	<-got // it has taken over
	s, err := ops.New(pool, ops.Config{})
	if err != nil {
		t.Fatal(err)
	}
	// Replayed events are always delivered. Later events of the aggregate are not if dead letters block.
	later := writeLive(t, pool, "order", 1)
	want := live - 1 + replayedOrders
	if !block {
		want++
	}
	ids := make([]int64, replayedOrders)
	for i := range ids {
		ids[i] = int64(dead - i)
	}
	if _, err := s.ReplayDeadLetters(t.Context(), ops.DeadLetterFilter{Destination: "orders", Events: ids}, ops.BulkAction{}); err != nil {
		t.Fatal(err)
	}
	writeLive(t, pool, "live", live-1)
	for n := range want {
		select {
		case id := <-got:
			if block && id == later {
				t.Errorf("event %d is delivered behind dead letters that block", id)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%d of %d events delivered", n, want)
		}
	}
}

// TestDeadLettersAcrossShards: a change of the number of shards leaves dead letters alone. They still block their
// aggregates, and a replay delivers them, and then the events behind them.
func TestDeadLettersAcrossShards(t *testing.T) {
	t.Parallel()
	const dead = 100
	pool := streamPool(t)
	finishedOrders(t, pool, dead, `i::text`, `'order/' || i`)
	block := delivery.Lane{OnDead: delivery.OnDead{Then: delivery.OnDeadBlock}}
	for _, shards := range []int{1, 3, 2} {
		got := make(chan int64, 3*dead)
		block.Shards = shards
		end := ordersRelay(t, pool, got, block)
		later := writeLive(t, pool, "order", dead)
		writeLive(t, pool, "live", dead)
		for range dead {
			if id := <-got; id <= later {
				t.Errorf("with %d shards, event %d is delivered behind a dead letter", shards, id)
			}
		}
		if n := testdb.One[int64](t, pool, `SELECT count(*) FROM outbox_deliveries WHERE state = 'dead' AND shard = 0`); n != dead {
			t.Errorf("with %d shards, %d of %d dead letters are as they were", shards, n, dead)
		}
		end()
	}

	got := make(chan int64, 4*dead)
	block.Shards = 4
	defer ordersRelay(t, pool, got, block)()
	s, err := ops.New(pool, ops.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.ReplayDeadLetters(t.Context(), ops.DeadLetterFilter{Destination: "orders"}, ops.BulkAction{}); err != nil {
		t.Fatal(err)
	}
	last := make(map[int64]int64) // by aggregate
	for range 4 * dead {
		id := <-got
		aggregate := testdb.One[int64](t, pool, `SELECT aggregate_id::bigint FROM outbox_events WHERE id = $1`, id)
		if id <= last[aggregate] {
			t.Errorf("event %d is delivered after event %d", id, last[aggregate])
		}
		last[aggregate] = id
	}
}

// ordersRelay runs a relay whose destination gives the ids of its events to got, until end is called. No statement of it may
// be refused, as one is that takes too long.
func ordersRelay(t *testing.T, pool *pgxpool.Pool, got chan<- int64, lane delivery.Lane) (end func()) {
	t.Helper()
	level := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.LevelKey && a.Value.String() == slog.LevelError.String() {
			t.Error("an error is logged")
		}
		return a
	}
	relay, err := notifyd.New(pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{ReplaceAttr: level}))})
	if err != nil {
		t.Fatal(err)
	}
	handler := delivery.HandlerFunc(func(ctx context.Context, e *delivery.Event) error {
		select {
		case got <- e.ID:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if err := relay.Handle("order.*", notifyd.Destination{Name: "orders", Handler: handler, Lane: lane}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	return func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// writeLive writes events of as many aggregates, and returns the id of the last one.
func writeLive(t *testing.T, pool *pgxpool.Pool, kind string, n int) (last int64) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `WITH e AS (INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
		SELECT 'order.live', $1, i::text, '{}' FROM generate_series(1, $2::int) AS i RETURNING id) SELECT max(id) FROM e`, kind, n).Scan(&last); err != nil {
		t.Fatal(err)
	}
	return last
}
