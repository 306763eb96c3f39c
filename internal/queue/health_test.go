package queue

import (
	"context"
	"errors"
	"math/bits"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/laneconf"
	"github.com/notifyd/notifyd/internal/sleep"
	"github.com/notifyd/notifyd/observe"
)

func (r *relay) stateNow() observe.BreakerState { return r.Stats().Destinations[0].State }

// TestRunRampsUp: a backlog does not overrun a destination that is back.
func TestRunRampsUp(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var mu sync.Mutex
		var running, answers int
		var down atomic.Bool
		down.Store(true)
		var c calls
		cfg := testLane()
		cfg.Concurrency = 64
		r.to(t, "a", c.handler(func(ctx context.Context, _ *delivery.Event) error {
			if down.Load() {
				return delivery.Unavailable(errors.New("connection refused"))
			}
			mu.Lock()
			running++
			if allowed := 1 << max(0, bits.Len(uint(answers))-1); running > allowed {
				t.Errorf("%d at once after %d answers", running, answers)
			}
			mu.Unlock()
			sleep.For(ctx, 20*time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			running--
			answers++
			return nil
		}), cfg, "x")
		r.start()
		<-r.Ready()
		ids := db.write("x", 1000)
		eventually(t, "open", func() bool { return r.stateNow() == observe.BreakerOpen })
		after(10 * time.Second)
		down.Store(false)
		eventually(t, "ramping", func() bool { return r.stateNow() == observe.BreakerRamping })
		if s := r.Stats().Destinations[0]; s.Down {
			t.Error("the destination answers but is shown as unavailable")
		}
		begin := time.Now()
		eventually(t, "closed", func() bool { return r.stateNow() == observe.BreakerClosed })
		eventually(t, "all delivered", db.empty)
		// Seven rounds up to the concurrency of 64, and 14 at full speed.
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("it took %v from the first answer on", took)
		}
		c.once(t, ids)
	})
}

// TestRunDoesNotHammerWhatFallsOver: a destination that answers now and then and fails again has
// one outage, with ever longer pauses.
func TestRunDoesNotHammerWhatFallsOver(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var n atomic.Int64
		var well atomic.Bool
		var c calls
		cfg := testLane()
		cfg.MaxAttempts = laneconf.WithDefaults(delivery.Lane{}).MaxAttempts
		r.to(t, "a", c.handler(func(context.Context, *delivery.Event) error {
			if n.Add(1)%3 != 0 && !well.Load() {
				return delivery.Unavailable(errors.New("out of memory"))
			}
			return nil
		}), cfg, "x")
		r.start()
		<-r.Ready()
		ids := db.write("x", 500)
		after(time.Minute)
		seen := c.n()
		after(10 * time.Minute)
		if n := c.n() - seen; n < 20 || n > 150 {
			t.Errorf("%d calls in ten minutes", n)
		}
		well.Store(true)
		eventually(t, "all delivered", db.empty)
		c.once(t, ids)
		// Two of three calls fail while others are answered: an event that is met by that
		// again and again looks as if it was to blame, but has attempts left.
		counted := 0
		for _, one := range c.all() {
			if one.attempt > 1 {
				counted++
			}
		}
		if faults := c.n() - len(ids); counted > faults/4 {
			t.Errorf("%d of %d faults were counted as attempts", counted, faults)
		}
		after(10 * time.Second)
		if n, m := r.log.count("destination down"), r.log.count("destination up"); n != 1 || m != 1 {
			t.Errorf("%d times unavailable, %d times back: it was one outage", n, m)
		}
	})
}

// TestRunClosesWithoutMoreEvents: one event reveals the outage and is the last one.
func TestRunClosesWithoutMoreEvents(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		p := &place{}
		p.down.Store(true)
		r.to(t, "a", p.handler(), testLane(), "x")
		r.start()
		<-r.Ready()
		ids := db.write("x", 1)
		eventually(t, "down", func() bool { return r.Stats().Destinations[0].Down })
		p.down.Store(false)
		eventually(t, "delivered", db.empty)
		if s := r.stateNow(); s != observe.BreakerRamping {
			t.Errorf("the breaker is %v after the first answer", s)
		}
		eventually(t, "closed", func() bool { return r.stateNow() == observe.BreakerClosed })
		if r.log.count("destination up") != 1 {
			t.Error("recovery was not logged")
		}
		p.once(t, ids)
	})
}

// TestPauseWhileRamping: a pause in the middle of a ramp holds, and the backlog is delivered when
// it ends.
func TestPauseWhileRamping(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		p := &place{delay: 200 * time.Millisecond}
		p.down.Store(true)
		cfg := testLane()
		cfg.Concurrency = 64
		r.to(t, "a", p.handler(), cfg, "x")
		r.start()
		<-r.Ready()
		ids := db.write("x", 300)
		eventually(t, "down", func() bool { return r.Stats().Destinations[0].Down })
		p.down.Store(false)
		eventually(t, "ramping", func() bool { return r.stateNow() == observe.BreakerRamping && p.atOnce() > 0 })
		if err := r.Pause("a"); err != nil {
			t.Fatal(err)
		}
		after(time.Second)
		seen := p.n()
		after(10 * time.Minute)
		if n := p.n() - seen; n != 0 {
			t.Errorf("%d calls while it was paused", n)
		}
		if err := r.Resume("a"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "all delivered", db.empty)
		p.once(t, ids)
	})
}

// quota is a destination that accepts so many deliveries and refuses the rest.
type quota struct {
	calls

	every  time.Duration // one more may come
	most   float64       // saved up
	window time.Duration // if not 0, so many may come in each of them, and every is not used
	tells  bool          // refusals carry the time to wait

	mu      sync.Mutex
	left    float64
	at      time.Time
	refused int
}

func (q *quota) handler(takes time.Duration) delivery.Handler {
	return q.calls.handler(func(ctx context.Context, _ *delivery.Event) error {
		sleep.For(ctx, takes)
		q.mu.Lock()
		defer q.mu.Unlock()
		now := time.Now()
		wait := q.every
		switch {
		case q.at.IsZero(), q.window > 0 && now.Sub(q.at) >= q.window:
			q.left, q.at = q.most, now
		case q.window == 0:
			q.left = min(q.most, q.left+float64(now.Sub(q.at))/float64(q.every))
			q.at = now
		default:
			wait = q.window - now.Sub(q.at)
		}
		if q.left >= 1 {
			q.left--
			return nil
		}
		q.refused++
		if !q.tells {
			wait = 0
		}
		return delivery.Throttled(wait, errors.New("429 Too Many Requests"))
	})
}

// TestRunThrottled: a quota slows the lane. Nothing fails, nothing is lost, most
// calls are not refused, and most of the quota is used.
func TestRunThrottled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		q      *quota
		takes  time.Duration
		events int
		within time.Duration
	}{
		"a slow one":             {&quota{every: 500 * time.Millisecond, most: 1}, 0, 200, 200 * time.Second},
		"calls that take long":   {&quota{every: 20 * time.Millisecond, most: 5}, 100 * time.Millisecond, 1000, 60 * time.Second},
		"a fast one":             {&quota{every: time.Millisecond, most: 20}, time.Millisecond, 3000, 15 * time.Second},
		"it tells when":          {&quota{every: 20 * time.Millisecond, most: 5, tells: true}, 5 * time.Millisecond, 2000, 90 * time.Second},
		"windows":                {&quota{most: 200, window: 10 * time.Second}, time.Millisecond, 2000, 300 * time.Second},
		"windows, it tells when": {&quota{most: 200, window: 10 * time.Second, tells: true}, time.Millisecond, 2000, 110 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *bubble) {
				db, r := t.db, t.r
				r.to(t, "a", c.q.handler(c.takes), testLane(), "x")
				r.start()
				<-r.Ready()
				begin := time.Now()
				var ids []int64
				w := db.begin()
				for i := range c.events {
					ids = append(ids, w.insertKeyed("x", []string{"", "k", "l", "m"}[i%4], 0))
				}
				w.commit()
				for !db.empty() && time.Since(begin) < time.Hour {
					sleep.For(context.Background(), time.Second)
				}
				took := time.Since(begin)
				c.q.once(t, ids)
				c.q.uncounted(t.T)
				if r.log.count("unavailable") > 0 || r.Stats().Destinations[0].Throttled != uint64(c.q.refused) {
					t.Errorf("a working destination throttles: %+v", r.Stats().Destinations[0])
				}
				t.Logf("%d events took %v, %d refused in %d calls", c.events, took, c.q.refused, c.q.n())
				if 3*c.q.refused > c.q.n() {
					t.Errorf("%d of %d calls were refused", c.q.refused, c.q.n())
				}
				if took > c.within {
					t.Errorf("%d events took %v", c.events, took)
				}
			})
		})
	}
}

// TestRunThrottledWaits: no delivery starts before the time requested by the destination is over.
func TestRunThrottledWaits(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var refused atomic.Int64
		var c calls
		r.to(t, "a", c.handler(func(context.Context, *delivery.Event) error {
			if c.n() == 1 {
				refused.Store(time.Now().UnixNano())
				return delivery.Throttled(40*time.Second, errors.New("429"))
			}
			return nil
		}), testLane(), "x")
		r.start()
		<-r.Ready()
		ids := db.write("x", 1)
		eventually(t, "throttled", func() bool { return r.stateNow() == observe.BreakerThrottled })
		ids = append(ids, db.write("x", 500)...)
		eventually(t, "all delivered", db.empty)
		for _, one := range c.all()[1:] {
			if d := one.at.Sub(time.Unix(0, refused.Load())); d < 40*time.Second {
				t.Fatalf("called again after %v", d)
			}
		}
		c.once(t, ids)
		if n, m := r.log.count("destination throttles"), r.log.count("destination is no longer throttled"); n != 1 || m != 1 || r.stateNow() != observe.BreakerClosed {
			t.Errorf("%d times throttled, %d times not any more, and it is %v", n, m, r.stateNow())
		}
	})
}

// TestRunThrottledEventAlone: one event that is throttled whenever it comes, and comes first, does
// not hold back the others, and does not become a dead letter.
func TestRunThrottledEventAlone(t *testing.T) {
	t.Parallel()
	for name, many := range map[string]int{"others wait": 500, "nobody else": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *bubble) {
				db, r := t.db, t.r
				var well atomic.Bool
				var c calls
				cfg := testLane()
				cfg.Backoff = delivery.Backoff{Initial: time.Second, Max: time.Hour, Multiplier: 2}
				r.to(t, "a", c.handler(func(_ context.Context, e *delivery.Event) error {
					if e.ID == 1 && !well.Load() {
						return delivery.Throttled(0, errors.New("429"))
					}
					return nil
				}), cfg, "x")
				r.start()
				<-r.Ready()
				ids := db.write("x", 1+many)
				eventually(t, "all others are delivered", func() bool { return db.unfinished() == 1 })
				after(10 * time.Minute)
				if row, ok := db.row(1, "a"); !ok || row.State != deliveries.Retry || row.Failures != 0 || row.Class != "destination" {
					t.Fatalf("the row of the event: %+v", row.Entry)
				}
				seen := c.n()
				if more := db.write("x", 500); true {
					ids = append(ids, more...)
				}
				begin := time.Now()
				eventually(t, "500 more are delivered", func() bool { return db.unfinished() == 1 })
				if took := time.Since(begin); took > time.Second {
					t.Errorf("500 others took %v", took)
				}
				after(10 * time.Minute)
				if n := c.n() - seen - 500; n < 10 || n > 100 {
					t.Errorf("tried %d times in ten minutes", n)
				}
				well.Store(true)
				after(20 * time.Second)
				if !db.empty() {
					t.Error("not delivered when it is welcome")
				}
				c.once(t, ids)
			})
		})
	}
}

// TestRunThrottledProbe: a probe that is throttled counts as answered.
func TestRunThrottledProbe(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var c calls
		var k atomic.Int64
		r.to(t, "a", c.handler(func(context.Context, *delivery.Event) error {
			switch n := k.Add(1); {
			case n < 3:
				return delivery.Unavailable(errors.New("down"))
			case n < 6:
				return delivery.Throttled(time.Second, errors.New("429"))
			}
			return nil
		}), testLane(), "x")
		r.start()
		<-r.Ready()
		ids := db.write("x", 300)
		eventually(t, "all delivered", db.empty)
		c.once(t, ids)
		if n := r.log.count("destination down"); n != 1 {
			t.Errorf("%d outages", n)
		}
	})
}

// TestRunThrottledBatches: part of a batch is accepted, the rest is not.
func TestRunThrottledBatches(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		q := &quota{every: 5 * time.Millisecond, most: 50}
		one := q.handler(0)
		r.to(t, "a", delivery.BatchHandlerFunc(func(ctx context.Context, events []*delivery.Event) []error {
			sleep.For(ctx, time.Millisecond)
			errs := make([]error, len(events))
			for i, e := range events {
				errs[i] = one.Deliver(ctx, e)
			}
			return errs
		}), testLane(), "x")
		r.start()
		<-r.Ready()
		begin := time.Now()
		ids := db.write("x", 4000)
		for !db.empty() && time.Since(begin) < time.Hour {
			sleep.For(context.Background(), time.Second)
		}
		took := time.Since(begin)
		q.once(t, ids)
		t.Logf("took %v, %d refused in %d calls", took, q.refused, q.n())
		if took > time.Minute || 3*q.refused > q.n() {
			t.Errorf("it took %v, %d of %d were refused", took, q.refused, q.n())
		}
	})
}
