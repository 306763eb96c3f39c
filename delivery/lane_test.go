package delivery_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
)

func TestLaneDefaults(t *testing.T) {
	t.Parallel()
	want := delivery.Lane{
		Concurrency: 8, Batch: 100, Timeout: 30 * time.Second, MaxAttempts: 20, Order: delivery.OrderAuto, OnDead: delivery.OnDead{Then: delivery.OnDeadContinue},
		StartFrom: delivery.StartAuto, Shards: 1, LongestPause: 30 * time.Second, Backoff: delivery.DefaultBackoff(),
	}
	if got := (delivery.Lane{}).WithDefaults(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if err := (delivery.Lane{}).Validate(); err != nil {
		t.Error(err)
	}
	set := delivery.Lane{
		Concurrency: 1, Batch: 2, Timeout: time.Second, MaxAttempts: 3, Priority: -100, Order: delivery.OrderNone, OnDead: delivery.OnDead{To: "parking", Then: delivery.OnDeadBlock}, StartFrom: "now",
		Shards: delivery.MaxShards, RateLimit: delivery.Rate{Events: 1, Per: time.Second}, RateBurst: 4, ExpiresAfter: time.Millisecond, LongestPause: time.Minute,
		Backoff: delivery.Backoff{Initial: time.Second, Max: time.Second, Multiplier: 1},
	}
	if got := set.WithDefaults(); got != set {
		t.Errorf("%+v, want %+v", got, set)
	}
	if err := set.Validate(); err != nil {
		t.Error(err)
	}
}

// TestLaneMistakes: each mistake is found, with the name that the field has in the file.
func TestLaneMistakes(t *testing.T) {
	t.Parallel()
	for want, l := range map[string]delivery.Lane{
		"concurrency: -1 is too small":                         {Concurrency: -1},
		"batch: 100001 is too large":                           {Batch: 100_001},
		"timeout: -1s is too small":                            {Timeout: -time.Second},
		"max_attempts: -1 is too small":                        {MaxAttempts: -1},
		"priority: 101 is too large: the most is 100":          {Priority: 101},
		`order: unknown word "sometimes"`:                      {Order: "sometimes"},
		`on_dead.then: unknown word "cry"`:                     {OnDead: delivery.OnDead{Then: "cry"}},
		"shards: 65 is too large: the most is 64":              {Shards: delivery.MaxShards + 1},
		"shards: must be 1 with order: total":                  {Shards: 2, Order: delivery.OrderTotal},
		"rate_limit: rate limit of -1 events is below 1":       {RateLimit: delivery.Rate{Events: -1, Per: time.Second}},
		"rate_burst: has no effect without rate_limit":         {RateBurst: 1},
		"expires_after: 1µs is too small: the least is 1ms":    {ExpiresAfter: time.Microsecond},
		"expires_after: -1s is too small: the least is 1ms":    {ExpiresAfter: -time.Second},
		"longest_pause: 1µs is too small: the least is 1ms":    {LongestPause: time.Microsecond},
		"backoff.initial: -1s is too small: the least is 1ms":  {Backoff: delivery.Backoff{Initial: -time.Second, Max: time.Second}},
		"backoff.max: 1s is shorter than backoff.initial (2s)": {Backoff: delivery.Backoff{Initial: 2 * time.Second, Max: time.Second}},
		"backoff.multiplier: 0.5 is too small: the least is 1": {Backoff: delivery.Backoff{Multiplier: 0.5}},
	} {
		err := l.Validate()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
			continue
		}
		path, _, _ := strings.Cut(want, ": ")
		if mistake, ok := errors.AsType[*handlers.FieldError](err); !ok || mistake.Path != path {
			t.Errorf("%v has no path %s", err, path)
		}
	}
}

func TestLaneNeedsStream(t *testing.T) {
	t.Parallel()
	for want, l := range map[string]delivery.Lane{
		"":                 {Order: delivery.OrderNone, OnDead: delivery.OnDead{To: "parking", Then: delivery.OnDeadContinue}, StartFrom: delivery.StartAuto, Shards: 1},
		"order: aggregate": {Order: delivery.OrderAggregate},
		"order: total, on_dead: block, start_from: now": {Order: delivery.OrderTotal, OnDead: delivery.OnDead{Then: delivery.OnDeadBlock}, StartFrom: "now"},
		"on_dead.then: block":                           {OnDead: delivery.OnDead{To: "parking", Then: delivery.OnDeadBlock}},
		"shards: 2":                                     {Shards: 2},
	} {
		if got := strings.Join(l.NeedsStream(), ", "); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestRateText: what a rate is written as is what it is read as.
func TestRateText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]delivery.Rate{
		"": {}, "100/s": {Events: 100, Per: time.Second}, "500/m": {Events: 500, Per: time.Minute}, "7/10m": {Events: 7, Per: 10 * time.Minute},
		"10000/h": {Events: 10_000, Per: time.Hour}, "50000/d": {Events: 50_000, Per: 24 * time.Hour}, "1/250ms": {Events: 1, Per: 250 * time.Millisecond},
	} {
		var r delivery.Rate
		if err := r.UnmarshalText([]byte(text)); err != nil || r != want {
			t.Errorf("%q: %+v, %v", text, r, err)
		}
		if back, err := r.MarshalText(); err != nil || string(back) != text {
			t.Errorf("%+v: %q, %v", r, back, err)
		}
	}
	for _, text := range []string{"5", "5/", "/s", "5/w", "0/s", "-1/s", "5/0s", "5 /s", "5/s ", "2000000/s", "1/400d", "1.5/s", "5/S"} {
		var r delivery.Rate
		if err := r.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is taken for %+v", text, r)
		}
	}
	if _, err := (delivery.Rate{Events: 1, Per: time.Millisecond + 1}).MarshalText(); err == nil {
		t.Error("a part of a millisecond has a text")
	}
	rapid.Check(t, func(t *rapid.T) {
		units := []time.Duration{time.Millisecond, time.Second, time.Minute, time.Hour, 24 * time.Hour}
		r := delivery.Rate{Events: rapid.IntRange(1, 1000).Draw(t, "events"), Per: time.Duration(rapid.IntRange(1, 300).Draw(t, "times")) * rapid.SampledFrom(units).Draw(t, "unit")}
		text, err := r.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var back delivery.Rate
		if err := back.UnmarshalText(text); err != nil || back != r {
			t.Fatalf("%+v is %q, which is %+v, %v", r, text, back, err)
		}
	})
}

// TestWordsOfLanes: the constants are the words of the tags.
func TestWordsOfLanes(t *testing.T) {
	t.Parallel()
	for _, order := range []delivery.Order{delivery.OrderAuto, delivery.OrderNone, delivery.OrderAggregate, delivery.OrderTotal} {
		if err := (delivery.Lane{Order: order}).Validate(); err != nil {
			t.Error(err)
		}
	}
	if !slices.Contains([]delivery.LaterEvents{delivery.OnDeadContinue, delivery.OnDeadBlock}, delivery.Lane{}.WithDefaults().OnDead.Then) {
		t.Error("the default of OnDead has no constant")
	}
}
