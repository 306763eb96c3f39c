package relaytest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/deadletter"
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
		`UPDATE outbox_mode SET origin_head = (SELECT max(id) FROM outbox_events)`,
	} {
		var args []any
		if statement[0] == 'I' {
			args = []any{n}
		}
		if _, err := pool.Exec(t.Context(), statement, args...); err != nil {
			t.Fatal(err)
		}
	}
}

// TestManyDeadLettersOfOneLine: 400,000 dead letters of one aggregate, or of one order of all events,
// hold up neither the replay of some of them nor what is live.
func TestManyDeadLettersOfOneLine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		key   string
		order []notifyd.HandleOption
	}{
		"aggregate": {key: `'order/1'`},
		"blocking":  {key: `'order/1'`, order: []notifyd.HandleOption{notifyd.WithBlockOnDead()}},
		"total":     {key: `'*'`, order: []notifyd.HandleOption{notifyd.WithTotalOrder()}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const dead, replayed, live = 400_000, 300, 300
			pool := streamPool(t)
			finishedOrders(t, pool, dead, `'1'`, c.key)
			got := make(chan int64, replayed+live)
			ordersRelay(t, pool, got, c.order...)
			writeLive(t, pool, "live", 1)
			<-got // it has taken over
			s, err := deadletter.New(pool, deadletter.Config{})
			if err != nil {
				t.Fatal(err)
			}
			// What a person replays goes in any case, and what comes later in the aggregate does not where dead letters block.
			later := writeLive(t, pool, "order", 1)
			want := live - 1 + replayed
			if name != "blocking" {
				want++
			}
			ids := make([]int64, replayed)
			for i := range ids {
				ids[i] = int64(dead - i)
			}
			if _, err := s.Replay(t.Context(), deadletter.Filter{Destination: "orders", Events: ids}, deadletter.Action{}); err != nil {
				t.Fatal(err)
			}
			writeLive(t, pool, "live", live-1)
			for n := range want {
				select {
				case id := <-got:
					if name == "blocking" && id == later {
						t.Errorf("event %d is delivered behind dead letters that block", id)
					}
				case <-time.After(time.Minute):
					t.Fatalf("%d of %d events delivered", n, want)
				}
			}
		})
	}
}

// ordersRelay runs a relay whose destination gives the ids of its events to got. No statement of it may be refused, as one
// is that takes too long.
func ordersRelay(t *testing.T, pool *pgxpool.Pool, got chan<- int64, options ...notifyd.HandleOption) {
	t.Helper()
	level := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.LevelKey && a.Value.String() == slog.LevelError.String() {
			t.Error("an error is logged")
		}
		return a
	}
	relay, err := notifyd.New(pool, notifyd.WithLogger(slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{ReplaceAttr: level}))))
	if err != nil {
		t.Fatal(err)
	}
	handler := notifyd.HandlerFunc(func(ctx context.Context, e *notifyd.Event) error {
		select {
		case got <- e.ID:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if err := relay.Handle("orders", "order.*", handler, options...); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
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
