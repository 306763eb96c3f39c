package delivery

import (
	"math"
	"testing"
	"time"
)

func TestBackoffFillsZeroFields(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ given, want Backoff }{
		{Backoff{}, DefaultBackoff()},
		{Backoff{Initial: time.Minute}, Backoff{time.Minute, time.Hour, 2}},
		{Backoff{Initial: 2 * time.Hour}, Backoff{2 * time.Hour, 2 * time.Hour, 2}},
		{Backoff{Max: 2 * time.Second}, Backoff{time.Second, 2 * time.Second, 2}},
		{Backoff{Max: 500 * time.Millisecond}, Backoff{500 * time.Millisecond, 500 * time.Millisecond, 2}},
		{Backoff{Multiplier: 3}, Backoff{time.Second, time.Hour, 3}},
		{Backoff{3, 4, 5}, Backoff{3, 4, 5}},
	} {
		if got := c.given.WithDefaults(); got != c.want {
			t.Errorf("%+v with defaults is %+v, want %+v", c.given, got, c.want)
		}
		if err := c.given.Validate(); (err == nil) != (c.want.Initial >= time.Millisecond) {
			t.Errorf("%+v: %v", c.given, err)
		}
	}
}

func TestBackoffRefusesWhatIsNoBackoff(t *testing.T) {
	t.Parallel()
	good := DefaultBackoff()
	for name, change := range map[string]func(*Backoff){
		"negative":            func(b *Backoff) { b.Initial = -1 },
		"too short a longest": func(b *Backoff) { *b = Backoff{Max: time.Microsecond} },
		"initial":             func(b *Backoff) { b.Initial = time.Microsecond },
		"max":                 func(b *Backoff) { b.Max = b.Initial - 1 },
		"below 1":             func(b *Backoff) { b.Multiplier = 0.99 },
		"NaN":                 func(b *Backoff) { b.Multiplier = math.NaN() },
		"infinite":            func(b *Backoff) { b.Multiplier = math.Inf(1) },
	} {
		b := good
		change(&b)
		if b.Validate() == nil {
			t.Errorf("%s: accepted %+v", name, b)
		}
	}
}
