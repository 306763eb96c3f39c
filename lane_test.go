package notifyd_test

import (
	"context"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
)

// TestWithLane: a handler is called as its package suggests, and what the suggestion
// leaves out stays as it is.
func TestWithLane(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	pool := openExample(ctx)
	t.Cleanup(pool.Close)
	relay, err := notifyd.New(pool)
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan time.Duration, 1)
	err = relay.Handle("slow", "order.created", notifyd.HandlerFunc(func(ctx context.Context, _ *notifyd.Event) error {
		end, _ := ctx.Deadline()
		left <- time.Until(end)
		return nil
	}), notifyd.WithTimeout(time.Minute), notifyd.WithLane(delivery.Lane{Timeout: 2 * time.Hour}), notifyd.WithLane(delivery.Lane{Concurrency: 1}))
	if err != nil {
		t.Fatal(err)
	}
	write(ctx, pool, "order.created")
	run := start(ctx, relay)
	if got := <-left; got < time.Hour {
		t.Errorf("a call ends after %v, want 2h", got)
	}
	stop()
	<-run
	if err := relay.Destination("none", notifyd.HandlerFunc(nil), notifyd.WithLane(delivery.Lane{Batch: -1})); err == nil {
		t.Error("a batch of -1 was taken")
	}
}
