package integration

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
)

// TestShardsRefused: a number out of bounds and total order exclude several shards, and a queue refuses them.
func TestShardsRefused(t *testing.T) {
	t.Parallel()
	r := newLimitRun(t, false)
	relay, err := notifyd.New(r.pool, notifyd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	plain := delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil })
	for _, c := range []struct {
		handler delivery.Handler
		lane    delivery.Lane
		want    string
	}{
		{plain, delivery.Lane{Shards: -1}, "shards: -1 is too small: the least is 1"},
		{plain, delivery.Lane{Shards: 65}, "shards: 65 is too large: the most is 64"},
		{plain, delivery.Lane{Shards: 2, Order: delivery.OrderTotal}, "must be 1 with order: total"},
	} {
		if err := relay.Add(notifyd.Destination{Name: "x", Handler: c.handler, Lane: c.lane}); !errors.Is(err, notifyd.ErrDestination) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want %q: %v", c.want, err)
		}
	}
	if err := relay.Add(notifyd.Destination{Name: "one", Handler: plain, Lane: delivery.Lane{Shards: 1}}); err != nil {
		t.Fatal(err)
	}
	if err := relay.Add(notifyd.Destination{Name: "many", Handler: plain, Lane: delivery.Lane{Shards: 64}}); err != nil {
		t.Fatal(err)
	}
	if err := relay.Run(t.Context()); !errors.Is(err, notifyd.ErrNeedsStream) || !strings.Contains(err.Error(), "many: shards") || strings.Contains(err.Error(), "one") {
		t.Errorf("a queue: %v", err)
	}
}
