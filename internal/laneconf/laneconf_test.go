package laneconf_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/laneconf"
)

func TestLaneDefaults(t *testing.T) {
	t.Parallel()
	want := delivery.Lane{
		Concurrency: 8, Batch: 100, Timeout: 30 * time.Second, MaxAttempts: 20, Order: delivery.OrderAuto, OnDead: delivery.OnDead{Then: delivery.OnDeadContinue},
		StartFrom: laneconf.StartAuto, Shards: 1, LongestPause: 30 * time.Second, Backoff: laneconf.Backoff(delivery.Backoff{}),
	}
	if got := laneconf.WithDefaults(delivery.Lane{}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if err := laneconf.Validate(delivery.Lane{}); err != nil {
		t.Error(err)
	}
	set := delivery.Lane{
		Concurrency: 1, Batch: 2, Timeout: time.Second, MaxAttempts: 3, Priority: -100, Order: delivery.OrderNone, OnDead: delivery.OnDead{To: "parking", Then: delivery.OnDeadBlock}, StartFrom: "now",
		Shards: laneconf.MaxShards, RateLimit: delivery.Rate{Events: 1, Per: time.Second}, RateBurst: 4, ExpiresAfter: time.Millisecond, LongestPause: time.Minute,
		Backoff: delivery.Backoff{Initial: time.Second, Max: time.Second, Multiplier: 1},
	}
	if got := laneconf.WithDefaults(set); !reflect.DeepEqual(got, set) {
		t.Errorf("%+v, want %+v", got, set)
	}
	if err := laneconf.Validate(set); err != nil {
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
		"shards: 65 is too large: the most is 64":              {Shards: laneconf.MaxShards + 1},
		"shards: must be 1 with order: total":                  {Shards: 2, Order: delivery.OrderTotal},
		"rate_limit: rate limit of -1 events is below 1":       {RateLimit: delivery.Rate{Events: -1, Per: time.Second}},
		"rate_burst: has no effect without rate_limit":         {RateBurst: 1},
		"expires_after: 1µs is too small: the least is 1ms":    {ExpiresAfter: time.Microsecond},
		"expires_after: -1s is too small: the least is 1ms":    {ExpiresAfter: -time.Second},
		"longest_pause: 1µs is too small: the least is 1ms":    {LongestPause: time.Microsecond},
		"backoff.initial: -1s is too small: the least is 1ms":  {Backoff: delivery.Backoff{Initial: -time.Second, Max: time.Second}},
		"backoff.max: 1s is shorter than backoff.initial (2s)": {Backoff: delivery.Backoff{Initial: 2 * time.Second, Max: time.Second}},
		"backoff: has no effect beside retry":                  {Backoff: delivery.Backoff{Initial: 2 * time.Second}, Retry: []time.Duration{time.Second}},
		"retry.1: 0s is too small: the least is 1ms":           {Retry: []time.Duration{time.Second, 0}},
		"backoff.multiplier: 0.5 is too small: the least is 1": {Backoff: delivery.Backoff{Multiplier: 0.5}},
	} {
		err := laneconf.Validate(l)
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
		"":                 {Order: delivery.OrderNone, OnDead: delivery.OnDead{To: "parking", Then: delivery.OnDeadContinue}, StartFrom: laneconf.StartAuto, Shards: 1},
		"order: aggregate": {Order: delivery.OrderAggregate},
		"order: total, on_dead: block, start_from: now": {Order: delivery.OrderTotal, OnDead: delivery.OnDead{Then: delivery.OnDeadBlock}, StartFrom: "now"},
		"on_dead.then: block":                           {OnDead: delivery.OnDead{To: "parking", Then: delivery.OnDeadBlock}},
		"shards: 2":                                     {Shards: 2},
	} {
		if got := strings.Join(laneconf.NeedsStream(l), ", "); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestWordsOfLanes: the constants are the words of the tags.
func TestWordsOfLanes(t *testing.T) {
	t.Parallel()
	for _, order := range []delivery.Order{delivery.OrderAuto, delivery.OrderNone, delivery.OrderAggregate, delivery.OrderTotal} {
		if err := laneconf.Validate(delivery.Lane{Order: order}); err != nil {
			t.Error(err)
		}
	}
	if !slices.Contains([]delivery.LaterEvents{delivery.OnDeadContinue, delivery.OnDeadBlock}, laneconf.WithDefaults(delivery.Lane{}).OnDead.Then) {
		t.Error("the default of OnDead has no constant")
	}
}

// TestRetryIsCopied: what the caller does with the list later does not change the lane.
func TestRetryIsCopied(t *testing.T) {
	t.Parallel()
	given := []time.Duration{time.Second}
	l := laneconf.WithDefaults(delivery.Lane{Retry: given})
	given[0] = -1
	if l.Retry[0] != time.Second {
		t.Errorf("the lane waits %v", l.Retry[0])
	}
}
