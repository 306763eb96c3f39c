package integration

import (
	"context"
	"errors"
	"testing"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
)

// TestChangedPatternKeepsDeliveries: a new release changes the pattern of a destination. It still delivers the stored
// deliveries of the previous release.
func TestChangedPatternKeepsDeliveries(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e := newEnvIn(t, mode)
			first := e.relay(func(r *notifyd.Relay) {
				failing := delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return errors.New("not yet") })
				if err := r.Handle("order.*", notifyd.Destination{Name: "orders", Handler: failing, Lane: delivery.Lane{Backoff: quick(), MaxAttempts: 1000}}); err != nil {
					t.Error(err)
				}
			}, notifyd.Config{})
			id := e.insert("order.created", "{}")
			e.until("the delivery is stored", `SELECT EXISTS (SELECT FROM outbox_deliveries WHERE event_id = $1 AND destination = 'orders')`, id)
			if err := first.end(); err != nil {
				t.Fatal(err)
			}
			rec := newRecorder(t)
			e.relay(func(r *notifyd.Relay) {
				// The new pattern does not even match the event.
				if err := r.Handle("customer.*", notifyd.Destination{Name: "orders", Handler: rec, Lane: delivery.Lane{Backoff: quick()}}); err != nil {
					t.Error(err)
				}
			}, notifyd.Config{})
			if got := rec.next(); got.ID != id || got.Destination != "orders" || got.Attempt < 2 {
				t.Errorf("delivered %+v, want event %d of orders with a later attempt", got, id)
			}
			e.until("nothing is left", `SELECT NOT EXISTS (SELECT FROM outbox_deliveries)`)
		})
	}
}
