package relaytest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// streamPool returns a pool of a database whose outbox_events is a stream.
func streamPool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testdb.URL(t, testdb.Tables{Mode: outboxsql.ModeStream}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func TestStreamDelivers(t *testing.T) {
	t.Parallel()
	pool := streamPool(t)
	relay, err := notifyd.New(pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	const events, aggregates = 2000, 20
	var mu sync.Mutex
	last, got, failed := map[string]int64{}, map[int64]int{}, map[int64]bool{}
	all := make(chan struct{})
	handler := delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		mu.Lock()
		defer mu.Unlock()
		if e.ID%97 == 0 && !failed[e.ID] {
			failed[e.ID] = true
			return errors.New("not yet")
		}
		if last[e.AggregateID] >= e.ID {
			t.Errorf("%d after %d of %s", e.ID, last[e.AggregateID], e.AggregateID)
		}
		last[e.AggregateID] = e.ID
		if got[e.ID]++; len(got) == events {
			close(all)
		}
		return nil
	})
	if err := relay.Handle("order.*", notifyd.Destination{Name: "orders", Handler: handler, Lane: delivery.Lane{Backoff: delivery.Backoff{Initial: 20 * time.Millisecond, Max: 50 * time.Millisecond, Multiplier: 2}}}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	for i := range events / 20 {
		if _, err := pool.Exec(ctx, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
			SELECT 'order.created', 'order', (g % $2)::text, '{}' FROM generate_series(1, $1) g`, 20, aggregates); err != nil {
			t.Fatal(i, err)
		}
	}
	select {
	case <-all:
	case err := <-done:
		t.Fatal(err)
	case <-t.Context().Done():
	case <-time.After(20 * time.Second):
		mu.Lock()
		t.Error(len(got), fmt.Sprintf("%+v", relay.Stats()))
		mu.Unlock()
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	var rows, head int64
	if err := pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM outbox_deliveries), (SELECT head FROM outbox_positions WHERE destination = 'orders' AND open = '{}')`).Scan(&rows, &head); err != nil {
		t.Fatal(err)
	}
	if rows != 0 || head != events {
		t.Errorf("%d rows, head %d", rows, head)
	}
}

// TestStreamTriesOnce: if no relay dies, no attempt is made twice, however soon the next one is
// due.
func TestStreamTriesOnce(t *testing.T) {
	t.Parallel()
	for name, lane := range map[string]delivery.Lane{"ordered": {Concurrency: 4}, "unordered": {Order: delivery.OrderNone}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := streamPool(t)
			relay, err := notifyd.New(pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
			if err != nil {
				t.Fatal(err)
			}
			const events, aggregates, attempts = 300, 30, 4
			type attempt struct {
				id int64
				n  int
			}
			var mu sync.Mutex
			tried, delivered := map[attempt]int{}, 0
			all := make(chan struct{})
			handler := delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
				mu.Lock()
				defer mu.Unlock()
				if tried[attempt{e.ID, e.Attempt}]++; e.Attempt < attempts {
					return errors.New("not yet")
				}
				if delivered++; delivered == events {
					close(all)
				}
				return nil
			})
			lane.Backoff = delivery.Backoff{Initial: time.Millisecond, Max: 20 * time.Millisecond, Multiplier: 2}
			if err := relay.Handle("*", notifyd.Destination{Name: "all", Handler: handler, Lane: lane}); err != nil {
				t.Fatal(err)
			}
			if _, err := pool.Exec(t.Context(), `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
				SELECT 'order.created', 'order', (g % $2)::text, '{}' FROM generate_series(1, $1) g`, events, aggregates); err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- relay.Run(ctx) }()
			select {
			case <-all:
			case err := <-done:
				t.Fatal(err)
			}
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
			for a, n := range tried {
				if n != 1 {
					t.Errorf("attempt %d of event %d was made %d times", a.n, a.id, n)
				}
			}
			var rows int
			if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox_deliveries`).Scan(&rows); err != nil || rows != 0 {
				t.Errorf("%d rows are left, %v", rows, err)
			}
		})
	}
}
