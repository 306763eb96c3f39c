package integration

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
)

// reporting takes batches, and tells how it is.
type reporting struct{ delivery.BatchHandlerFunc }

func (reporting) Report() delivery.Report { return delivery.Report{Unconfirmed: 3} }

// TestMiddlewareTakesNothingAway: a handler of batches is refused where middleware would
// have it deliver one by one, and its report is found behind middleware that fits.
func TestMiddlewareTakesNothingAway(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "host=127.0.0.1") // it is never connected to
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	relay, err := notifyd.New(pool, notifyd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	single := []delivery.Middleware{func(next delivery.Handler) delivery.Handler {
		return delivery.HandlerFunc(func(ctx context.Context, e *delivery.Event) error { return next.Deliver(ctx, e) })
	}}
	h := reporting{func(context.Context, []*delivery.Event) []error { return nil }}
	err = relay.Add(notifyd.Destination{Name: "refused", Handler: h, Middleware: single})
	if !errors.Is(err, delivery.ErrMiddleware) || !errors.Is(err, notifyd.ErrDestination) || !strings.Contains(err.Error(), "delivery.OneByOne") {
		t.Errorf("error %v does not say how to cure it", err)
	}
	relay.Use(delivery.Around(func(ctx context.Context, e *delivery.Event) (context.Context, *delivery.Event, func(error)) {
		return ctx, e, func(error) {}
	}))
	if err := errors.Join(relay.Handle("a", notifyd.Destination{Name: "batches", Handler: h}), relay.Handle("b", notifyd.Destination{Name: "singles", Handler: delivery.OneByOne(h), Middleware: single})); err != nil {
		t.Fatal(err)
	}
	for _, d := range relay.Stats().Destinations {
		if d.Report == nil || d.Report.Unconfirmed != 3 {
			t.Errorf("%s: report %+v", d.Name, d.Report)
		}
	}
	if n := len(relay.Stats().Destinations); n != 2 {
		t.Errorf("%d destinations, want 2", n)
	}
}
