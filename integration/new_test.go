package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
)

// TestNewRefuses: an error comes with a nil relay, and names every mistake.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	pool := unconnected(t)
	for name, c := range map[string]struct {
		pool *pgxpool.Pool
		cfg  notifyd.Config
		want []string
	}{
		"no pool": {nil, notifyd.Config{}, []string{"the pool is nil"}},
		"several": {pool, notifyd.Config{Schema: "\x00", Connections: -1, Retention: notifyd.Retention{Batch: -1}}, []string{"schema", "connections: -1 is too small", "retention.batch: -1 is too small"}},
		"canary":  {pool, notifyd.Config{Canary: time.Millisecond}, []string{"canary: 1ms is too small: the least is 100ms"}},
		"budget":  {pool, notifyd.Config{LockBudget: time.Nanosecond}, []string{"lock_budget: 1ns is too small: the least is 1ms"}},
		"lease":   {pool, notifyd.Config{LockBudget: 2 * time.Second, Lease: time.Second}, []string{"lease: 1s is not longer than lock_budget (2s)"}},
		"poll":    {pool, notifyd.Config{PollInterval: -1}, []string{"poll_interval: -1ns is too small"}},
	} {
		relay, err := notifyd.New(c.pool, c.cfg)
		if relay != nil || err == nil {
			t.Errorf("%s: %v, %v", name, relay, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not contain %q", name, err, want)
			}
		}
	}
}

// TestPartialBackoff: the fields that a Backoff leaves out have their defaults.
func TestPartialBackoff(t *testing.T) {
	t.Parallel()
	relay, err := notifyd.New(unconnected(t), notifyd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if relay.Ops() == nil {
		t.Error("no client of operators")
	}
	h := delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil })
	for name, b := range map[string]delivery.Backoff{"initial": {Initial: 2 * time.Hour}, "max": {Max: time.Minute}, "multiplier": {Multiplier: 1}, "none": {}} {
		if err := relay.Add(notifyd.Destination{Name: name, Handler: h, Lane: delivery.Lane{Backoff: b}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := relay.Add(notifyd.Destination{Name: "short", Handler: h, Lane: delivery.Lane{Backoff: delivery.Backoff{Initial: time.Microsecond}}}); err == nil {
		t.Error("an initial backoff of 1µs was taken")
	}
}

// unconnected returns a pool that has connected to nothing.
func unconnected(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/nothing")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
