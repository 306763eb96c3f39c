package relaytest

import (
	"context"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
)

// slowAggregate is a destination that does not answer for one aggregate until it is released.
type slowAggregate struct {
	released chan struct{}
	others   chan struct{} // one for each event of another aggregate
}

func (s *slowAggregate) Deliver(ctx context.Context, e *delivery.Event) error {
	if e.AggregateID != "0" {
		s.others <- struct{}{}
		return nil
	}
	select {
	case <-s.released:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestSlowAggregateHoldsUpNoOther: an aggregate with a call that does not end, and with more waiting events than a lane
// holds in memory, holds up no event of another aggregate.
func TestSlowAggregateHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	const events = 60_000 // a fifth of them has the slow aggregate
	pool := streamPool(t)
	if _, err := pool.Exec(t.Context(), `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
		SELECT 'a', 'order', CASE WHEN g % 5 = 0 THEN '0' ELSE g::text END, '{}' FROM generate_series(1, $1::int) AS g`, events); err != nil {
		t.Fatal(err)
	}

	to := &slowAggregate{released: make(chan struct{}), others: make(chan struct{}, events)}
	relay, err := notifyd.New(pool, notifyd.Config{PollInterval: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	lane := delivery.Lane{Concurrency: 6, Timeout: time.Hour}
	if err := relay.Handle("*", notifyd.Destination{Name: "orders", Handler: to, Lane: lane}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()

	for n := range events * 4 / 5 {
		select {
		case <-to.others:
		case <-t.Context().Done():
			t.Fatalf("%d events of other aggregates were delivered", n)
		}
	}
	close(to.released)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
