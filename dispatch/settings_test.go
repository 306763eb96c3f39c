package dispatch

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/health"
	"github.com/notifyd/notifyd/internal/lab/testenv/settingstest"
	"github.com/notifyd/notifyd/internal/limit"
)

// settings are a lane of which every setting has a value of its own. The waits are far from those of the default.
func settings(t *testing.T) delivery.Lane {
	t.Helper()
	var l delivery.Lane
	settingstest.Fill(t, settingstest.Of(&l), map[string]any{
		"Order": delivery.OrderAggregate, "OnDead.To": "dead", "StartFrom": "now", "RateBurst": 3,
		"RateLimit": delivery.Rate{Events: 500, Per: time.Minute}, "LongestPause": 10 * time.Hour,
		"Backoff.Initial": time.Minute, "Backoff.Multiplier": 20.0, "Backoff.Max": 10 * time.Hour,
		"Retry": []time.Duration{time.Minute},
	})
	l.Retry = nil // it excludes Backoff
	return l
}

// lanesOf adds a destination with these settings to a dispatcher.
func lanesOf(t *testing.T, h delivery.Handler, l delivery.Lane, reserve limit.Reserve) []*lane {
	t.Helper()
	d, err := New(Config{Window: 50 * time.Millisecond, Reserve: reserve}, nil, slog.New(slog.DiscardHandler))
	if err == nil {
		err = d.Add("a", h, LaneConfig{Lane: l})
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range d.lanes {
		l.ctx = context.Background()
		l.throughput.pace = time.Second // it takes what it can begin now
	}
	return d.lanes
}

// laneOf is lanesOf without a rate limit, and with one shard.
func laneOf(t *testing.T, h delivery.Handler, l delivery.Lane) *lane {
	t.Helper()
	l.RateLimit, l.RateBurst, l.Shards = delivery.Rate{}, 0, 0
	return lanesOf(t, h, l, nil)[0]
}

var errRefused = errors.New("refused")

// refusing is a handler whose failures count.
func refusing(context.Context, *delivery.Event) error { return errRefused }

// answered returns the answer to an event that has failed so often before.
func answered(t *testing.T, l delivery.Lane, failures int) (a Answer) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		lane := laneOf(t, delivery.HandlerFunc(refusing), l)
		p := NewBatch(func() bool { return true }, func(bool) {})
		if lane.Reserve(Request{N: 1}) != 1 {
			t.Fatal("no capacity")
		}
		p.Fill([]Delivery{{Event: &delivery.Event{ID: 1, Type: "x"}, Failures: failures}})
		lane.Deliver(p, nil)
		lane.goroutines.Wait()
		_, answers, _ := p.Take()
		if len(answers) != 1 {
			t.Fatalf("%d answers", len(answers))
		}
		a = answers[0]
	})
	return a
}

// retried returns how long an event waits for its retry after its n-th failure.
func retried(t *testing.T, l delivery.Lane, n int) time.Duration {
	t.Helper()
	return answered(t, l, n-1).Delay
}

// throttled returns how long an event waits that the destination alone throttles, the n-th time. It is at most 10 s.
func throttled(t *testing.T, l delivery.Lane, n int) time.Duration {
	t.Helper()
	lane := laneOf(t, delivery.HandlerFunc(refusing), l)
	now := time.Now()
	for range 1000 {
		f := health.Failed{Event: &delivery.Event{ID: 1}, Call: health.Call{Began: now}, Result: health.Result{Throttled: true}}
		d := lane.health.Decide(now, &f)
		if d.Next == health.SetAside {
			n--
		}
		if n == 0 {
			return d.Wait
		}
	}
	t.Fatal("the event is never throttled alone")
	return 0
}

// sees fails unless some waits of many are longer than low, and all are at most high. Each wait is drawn from zero to
// twice the schedule.
func sees(t *testing.T, wait func(t *testing.T, l delivery.Lane, n int) time.Duration, l delivery.Lane, n int, low, high time.Duration) {
	t.Helper()
	longest := time.Duration(0)
	for range 40 {
		longest = max(longest, wait(t, l, n))
	}
	if longest <= low || longest > high {
		t.Errorf("the longest wait after %d failures is %v, want more than %v and at most %v", n, longest, low, high)
	}
}

// TestLaneSettingsAct: every setting of a lane acts where the dispatcher uses it. A setting that this table does not name
// fails the test.
func TestLaneSettingsAct(t *testing.T) {
	t.Parallel()
	all := settings(t)
	none := delivery.HandlerFunc(refusing)
	equal := func(t *testing.T, got, want any) {
		t.Helper()
		if got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}

	// terms returns what the limiter reserves by.
	terms := func(t *testing.T) (got limit.Terms) {
		t.Helper()
		lanes := lanesOf(t, none, all, func(_ context.Context, _ string, terms limit.Terms, asks []limit.Request) ([]limit.Reservation, error) {
			got = terms
			return []limit.Reservation{{N: asks[0].N}}, nil
		})
		lanes[0].Admit([]Delivery{{Event: &delivery.Event{ID: 1, Type: "x"}}}, 0)
		return got
	}

	// short is a schedule below the longest wait of a throttled event.
	short := all
	short.Backoff = delivery.Backoff{Initial: 10 * time.Millisecond, Max: 100 * time.Millisecond, Multiplier: 5}

	settingstest.Arrive(t, &all, map[string]func(t *testing.T){
		"Concurrency": func(t *testing.T) {
			equal(t, laneOf(t, none, all).Reserve(Request{N: 10 * all.Concurrency}), all.Concurrency)
		},
		"Batch": func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got int
				lane := laneOf(t, delivery.BatchHandlerFunc(func(_ context.Context, events []*delivery.Event) []error {
					got = len(events)
					return nil
				}), all)
				claimOf(lane, all.Batch)
				lane.goroutines.Wait()
				equal(t, got, all.Batch)
			})
		},
		"Timeout": func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var took time.Duration
				lane := laneOf(t, delivery.HandlerFunc(func(ctx context.Context, _ *delivery.Event) error {
					began := time.Now()
					<-ctx.Done()
					took = time.Since(began)
					return ctx.Err()
				}), all)
				claimOf(lane, 1)
				lane.goroutines.Wait()
				equal(t, took, all.Timeout)
			})
		},
		"MaxAttempts": func(t *testing.T) {
			equal(t, answered(t, all, all.MaxAttempts-2).Verdict, VerdictFailed)
			equal(t, answered(t, all, all.MaxAttempts-1).Verdict, VerdictDead)
		},
		"Priority": func(t *testing.T) { // which the scheduler of a queue asks for
			equal(t, laneOf(t, none, all).Destination().Priority, all.Priority)
		},
		"Order": func(t *testing.T) {
			for order, want := range map[delivery.Order][2]bool{
				delivery.OrderAuto: {}, delivery.OrderAggregate: {}, delivery.OrderNone: {true, false}, delivery.OrderTotal: {false, true},
			} {
				l := all
				l.Order = order
				d := laneOf(t, none, l).Destination()
				equal(t, [2]bool{d.Unordered, d.Total}, want)
			}
		},
		"OnDead.To": func(t *testing.T) {
			figures := laneOf(t, none, all).figuresNow()
			equal(t, figures.DeadLettersTo, all.OnDead.To)
		},
		"OnDead.Then": func(t *testing.T) { equal(t, laneOf(t, none, all).Destination().Blocks(), true) },
		"StartFrom": func(t *testing.T) { // which the relay reads, before the dispatcher
			equal(t, laneOf(t, none, all).Destination().StartFrom, all.StartFrom)
		},
		"Shards": func(t *testing.T) {
			equal(t, len(lanesOf(t, none, all, func(context.Context, string, limit.Terms, []limit.Request) ([]limit.Reservation, error) {
				return nil, nil
			})), all.Shards)
		},
		"RateLimit": func(t *testing.T) { equal(t, terms(t).Gap, all.RateLimit.Per/time.Duration(all.RateLimit.Events)) },
		"RateBurst": func(t *testing.T) { equal(t, terms(t).Burst, all.RateBurst) },
		"ExpiresAfter": func(t *testing.T) {
			written := time.Now()
			equal(t, laneOf(t, none, all).Destination().Expires(written, time.Time{}), written.Add(all.ExpiresAfter))
		},
		"LongestPause": func(t *testing.T) {
			lane := laneOf(t, none, all)
			now := time.Now()
			lane.health.Fault(now, now, delivery.Unavailable(errRefused))
			now = now.Add(10_000 * all.LongestPause)
			f := lane.health.Fault(now, now, delivery.Unavailable(errRefused))
			if f.Pause <= all.LongestPause/4 || f.Pause > all.LongestPause {
				t.Errorf("after a long outage the pause is %v", f.Pause)
			}
		},
		"Backoff.Initial": func(t *testing.T) {
			sees(t, retried, all, 1, all.Backoff.Initial, 2*all.Backoff.Initial)
			sees(t, throttled, short, 1, short.Backoff.Initial, 2*short.Backoff.Initial)
		},
		"Backoff.Multiplier": func(t *testing.T) {
			sees(t, retried, all, 2, 20*all.Backoff.Initial, 40*all.Backoff.Initial)
			sees(t, throttled, short, 2, 5*short.Backoff.Initial, 10*short.Backoff.Initial)
		},
		"Backoff.Max": func(t *testing.T) {
			sees(t, retried, all, 10, all.Backoff.Max, 2*all.Backoff.Max)
			sees(t, throttled, short, 10, short.Backoff.Max, 2*short.Backoff.Max)
		},
		"Retry": func(t *testing.T) {
			l := all
			l.Backoff = delivery.Backoff{}
			l.Retry = []time.Duration{time.Second, 3 * time.Second}
			for n, pause := range []time.Duration{time.Second, 3 * time.Second, 3 * time.Second} {
				sees(t, retried, l, n+1, pause*9/10, pause*11/10)
				sees(t, throttled, l, n+1, pause*9/10, pause*11/10)
			}
		},
	})
}
