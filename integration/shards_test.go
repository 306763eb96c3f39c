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
	relay, err := notifyd.New(r.pool)
	if err != nil {
		t.Fatal(err)
	}
	plain := delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil })
	for _, c := range []struct {
		handler delivery.Handler
		options []notifyd.HandleOption
		want    string
	}{
		{plain, []notifyd.HandleOption{notifyd.WithShards(-1)}, "-1 shards is not from 1 to 64"},
		{plain, []notifyd.HandleOption{notifyd.WithShards(0)}, "0 shards is not from 1 to 64"},
		{plain, []notifyd.HandleOption{notifyd.WithShards(65)}, "65 shards is not from 1 to 64"},
		{plain, []notifyd.HandleOption{notifyd.WithShards(2), notifyd.WithTotalOrder()}, "total order"},
	} {
		if err := relay.Destination("x", c.handler, c.options...); !errors.Is(err, notifyd.ErrDestination) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want %q: %v", c.want, err)
		}
	}
	if err := relay.Destination("one", plain, notifyd.WithShards(1)); err != nil {
		t.Fatal(err)
	}
	if err := relay.Destination("many", plain, notifyd.WithShards(64)); err != nil {
		t.Fatal(err)
	}
	if err := relay.Run(t.Context()); !errors.Is(err, notifyd.ErrNeedsStream) || !strings.Contains(err.Error(), "many: shards") || strings.Contains(err.Error(), "one") {
		t.Errorf("a queue: %v", err)
	}
}
