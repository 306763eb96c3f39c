package integration

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/outbox"
)

// TestLane: a handler is called with the settings of its lane, and unset settings have their defaults.
func TestLane(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	pool := testdb.Pool(t, testdb.URL(t, testdb.Tables{}))
	relay, err := notifyd.New(pool, notifyd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan time.Duration, 1)
	err = relay.Handle("order.created", notifyd.Destination{Name: "slow", Handler: delivery.HandlerFunc(func(ctx context.Context, _ *delivery.Event) error {
		end, _ := ctx.Deadline()
		left <- time.Until(end)
		return nil
	}), Lane: delivery.Lane{Concurrency: 1, Timeout: 2 * time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	writeOne(t, pool, "order.created")
	run := runRelay(ctx, t, relay)
	if got := <-left; got < time.Hour {
		t.Errorf("a call ends after %v, want 2h", got)
	}
	stop()
	<-run
	if err := relay.Add(notifyd.Destination{Name: "none", Handler: delivery.HandlerFunc(nil), Lane: delivery.Lane{Batch: -1}}); err == nil {
		t.Error("a batch of -1 was taken")
	}
}

// writeOne writes an event of a type about order 1042.
func writeOne(t *testing.T, pool *pgxpool.Pool, eventType string) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return outbox.Write(t.Context(), tx, outbox.Event{Type: eventType, AggregateType: "order", AggregateID: "1042", Payload: 1})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// runRelay runs a relay until ctx ends; the channel is closed when it has ended.
func runRelay(ctx context.Context, t *testing.T, relay *notifyd.Relay) <-chan struct{} {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := relay.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	return done
}
