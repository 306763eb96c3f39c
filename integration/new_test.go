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
		pool    *pgxpool.Pool
		options []notifyd.Option
		want    []string
	}{
		"no pool": {nil, nil, []string{"the pool is nil"}},
		"several": {pool, []notifyd.Option{notifyd.WithSchema("\x00"), notifyd.WithLogger(nil), notifyd.WithRetention(-1, 0)}, []string{"schema", "logger", "retention", "purge batch"}},
		"canary":  {pool, []notifyd.Option{notifyd.WithCanary(time.Millisecond)}, []string{"canary"}},
		"budget":  {pool, []notifyd.Option{notifyd.WithLockBudget(time.Nanosecond)}, []string{"lock budget"}},
		"wait":    {pool, []notifyd.Option{notifyd.WithShutdownTimeout(-1)}, []string{"shutdown timeout"}},
	} {
		relay, err := notifyd.New(c.pool, c.options...)
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
	relay, err := notifyd.New(unconnected(t))
	if err != nil {
		t.Fatal(err)
	}
	if relay.Ops() == nil {
		t.Error("no client of operators")
	}
	h := delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil })
	for name, b := range map[string]delivery.Backoff{"initial": {Initial: 2 * time.Hour}, "max": {Max: time.Minute}, "multiplier": {Multiplier: 1}, "none": {}} {
		if err := relay.Destination(name, h, notifyd.WithBackoff(b)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := relay.Destination("short", h, notifyd.WithBackoff(delivery.Backoff{Initial: time.Microsecond})); err == nil {
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
