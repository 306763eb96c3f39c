package laneconf_test

import (
	"math"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/laneconf"
)

func TestBackoffFillsZeroFields(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ given, want delivery.Backoff }{
		{delivery.Backoff{}, laneconf.Backoff(delivery.Backoff{})},
		{delivery.Backoff{Initial: time.Minute}, delivery.Backoff{Initial: time.Minute, Max: time.Hour, Multiplier: 2}},
		{delivery.Backoff{Initial: 2 * time.Hour}, delivery.Backoff{Initial: 2 * time.Hour, Max: 2 * time.Hour, Multiplier: 2}},
		{delivery.Backoff{Max: 2 * time.Second}, delivery.Backoff{Initial: time.Second, Max: 2 * time.Second, Multiplier: 2}},
		{delivery.Backoff{Max: 500 * time.Millisecond}, delivery.Backoff{Initial: 500 * time.Millisecond, Max: 500 * time.Millisecond, Multiplier: 2}},
		{delivery.Backoff{Multiplier: 3}, delivery.Backoff{Initial: time.Second, Max: time.Hour, Multiplier: 3}},
		{delivery.Backoff{Initial: 3, Max: 4, Multiplier: 5}, delivery.Backoff{Initial: 3, Max: 4, Multiplier: 5}},
	} {
		if got := laneconf.Backoff(c.given); got != c.want {
			t.Errorf("%+v with defaults is %+v, want %+v", c.given, got, c.want)
		}
		if err := laneconf.ValidateBackoff(c.given); (err == nil) != (c.want.Initial >= time.Millisecond) {
			t.Errorf("%+v: %v", c.given, err)
		}
	}
}

func TestBackoffRefusesWhatIsNoBackoff(t *testing.T) {
	t.Parallel()
	good := laneconf.Backoff(delivery.Backoff{})
	for name, change := range map[string]func(*delivery.Backoff){
		"negative":            func(b *delivery.Backoff) { b.Initial = -1 },
		"too short a longest": func(b *delivery.Backoff) { *b = delivery.Backoff{Max: time.Microsecond} },
		"initial":             func(b *delivery.Backoff) { b.Initial = time.Microsecond },
		"max":                 func(b *delivery.Backoff) { b.Max = b.Initial - 1 },
		"below 1":             func(b *delivery.Backoff) { b.Multiplier = 0.99 },
		"NaN":                 func(b *delivery.Backoff) { b.Multiplier = math.NaN() },
		"infinite":            func(b *delivery.Backoff) { b.Multiplier = math.Inf(1) },
	} {
		b := good
		change(&b)
		if laneconf.ValidateBackoff(b) == nil {
			t.Errorf("%s: accepted %+v", name, b)
		}
	}
}
