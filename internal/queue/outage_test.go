package queue

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/sleep"
)

// place is a destination that can be down.
type place struct {
	calls

	down  atomic.Bool
	delay time.Duration
}

func (p *place) handler() delivery.Handler {
	return p.calls.handler(func(ctx context.Context, _ *delivery.Event) error {
		sleep.For(ctx, p.delay)
		if p.down.Load() {
			return delivery.Unavailable(errors.New("connection refused"))
		}
		return nil
	})
}

func TestRunProbesADestinationThatIsDown(t *testing.T) {
	t.Parallel()
	for name, delay := range map[string]time.Duration{"refuses at once": 0, "refuses slowly": 30 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *bubble) {
				db, r := t.db, t.r
				p := &place{delay: delay}
				p.down.Store(true)
				r.to(t, "a", p.handler(), testLane(), "x")
				r.start()
				<-r.Ready()
				ids := db.write("x", 500)
				after(time.Second)
				// Deliveries that ran when the breaker opened, and a probe for each pause.
				if n := p.n(); n > 60 {
					t.Errorf("%d calls within the first second", n)
				}
				seen := p.n()
				p.mu.Lock()
				p.most = 0
				p.mu.Unlock()
				after(5 * time.Minute)
				if n := p.n() - seen; n < 5 || n > 150 || p.atOnce() > 1 {
					t.Errorf("%d probes in five minutes, %d at once", n, p.atOnce())
				}
				p.down.Store(false)
				begin := time.Now()
				eventually(t, "all delivered", db.empty)
				if took := time.Since(begin); took > testLane().LongestPause*2 {
					t.Errorf("took %v after it came back", took)
				}
				p.once(t, ids)
				for _, one := range p.all() {
					if one.attempt != 1 {
						t.Fatalf("an attempt was counted: %+v", one)
					}
				}
				if n := r.log.count("destination down"); n != 1 {
					t.Errorf("reported %d times", n)
				}
			})
		})
	}
}

func TestRunFanOutSucceedsForEachDestinationAlone(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var a, d calls
		b := &place{}
		b.down.Store(true)
		r.to(t, "a", a.handler(nil), testLane())
		r.to(t, "b", b.handler(), testLane())
		r.to(t, "d", d.handler(fails(9, errors.New("no"))), testLane())
		r.fanOut(t, "x", "a", "b", "d", "a")
		r.start()
		ids := db.write("x", 300)
		begin := time.Now()
		eventually(t, "delivered where it can be", func() bool { return a.n() == 300 })
		if took := time.Since(begin); took > time.Second {
			t.Errorf("a was held back for %v", took)
		}
		after(time.Minute)
		b.down.Store(false)
		eventually(t, "all delivered", db.empty)
		a.once(t, ids)
		b.once(t, ids)
		for _, id := range ids {
			if row, _ := db.row(id, "d"); row.State != deliveries.Dead || row.Failures != 3 {
				t.Fatalf("d: %+v", row.Entry)
			}
		}
	})
}

func TestRunSlowLaneDoesNotHoldBackAFastOne(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var slow, fast calls
		cfg := testLane()
		cfg.Concurrency = 2
		r.to(t, "slow", slow.handler(takes(time.Second)), cfg, "s")
		r.to(t, "fast", fast.handler(nil), testLane(), "f")
		r.start()
		<-r.Ready()
		slowIDs := db.write("s", 100)
		after(3 * time.Second)
		begin := time.Now()
		fastIDs := db.write("f", 2000)
		slowIDs = append(slowIDs, db.write("s", 20)...)
		eventually(t, "the fast lane is through", func() bool { return fast.n() == 2000 })
		if took := time.Since(begin); took > time.Second/4 {
			t.Errorf("the fast lane took %v", took)
		}
		// The rest of the slow lane's events stays in the table.
		if n := len(db.deferred()); n > 20 {
			t.Errorf("%d rows for a lane that is merely slow", n)
		}
		// One event at a time is announced, and delivered at once.
		for range 20 {
			begin := time.Now()
			n := fast.n()
			fastIDs = append(fastIDs, db.write("f", 1)...)
			eventually(t, "delivered", func() bool { return fast.n() > n })
			if took := time.Since(begin); took > 20*time.Millisecond {
				t.Errorf("one fast event took %v", took)
			}
		}
		eventually(t, "the rest follows", db.empty)
		slow.once(t, slowIDs)
		fast.once(t, fastIDs)
	})
}

// deferred returns the ids of the rows of outbox_deliveries.
func (db *fakeDB) deferred() []int64 {
	db.mu.Lock()
	defer db.mu.Unlock()
	var ids []int64
	for ref := range db.rows {
		ids = append(ids, ref.EventID)
	}
	slices.Sort(ids)
	return ids
}

func TestRunOneStuckCallDoesNotSlowAnotherLane(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var stuck, fast calls
		r.to(t, "stuck", stuck.handler(takes(5*time.Second)), testLane(), "s")
		r.to(t, "fast", fast.handler(nil), testLane(), "f")
		r.start()
		<-r.Ready()
		db.write("f", 2000)
		after(time.Second)
		w := db.begin()
		w.insert("s", 0)
		w.insert("f", 0)
		w.commit()
		after(200 * time.Millisecond)
		if r.QueueLanes()[1].Slow() {
			t.Error("the fast lane counts as slow since another one was")
		}
	})
}

func TestRunDelayedEventsOfADestinationThatIsDown(t *testing.T) {
	t.Parallel()
	for _, claims := range []int{1, 4} {
		inBubble(t, func(t *bubble) {
			db := t.db
			cfg := testConfig()
			cfg.Claims = claims
			r := newRelay(t, db, 2, cfg)
			p, other := &place{}, &calls{}
			p.down.Store(true)
			r.to(t, "a", p.handler(), testLane(), "x")
			r.to(t, "b", other.handler(nil), testLane(), "y")
			r.start()
			<-r.Ready()
			w := db.begin()
			for range 50 {
				w.insert("x", time.Second)
			}
			w.commit()
			after(2 * time.Second)

			before := db.claimed()
			called := p.n()
			after(10 * time.Second)
			probes := p.n() - called

			// What waits costs claims only when a probe is due, and a few for each of them.
			if n := db.claimed() - before; n > 5*probes {
				t.Errorf("%d claims for %d probes in ten seconds of waiting", n, probes)
			}
			p.down.Store(false)
			eventually(t, "all delivered", db.empty)
			if err := r.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRunProbesWithADueDeliveryAfterThePause(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db := t.db
		cfg := testConfig()
		cfg.PollInterval = time.Hour // no step may depend on it
		r := newRelay(t, db, 2, cfg)
		var c calls
		var n atomic.Int32
		r.to(t, "a", c.handler(func(ctx context.Context, _ *delivery.Event) error {
			sleep.For(ctx, 10*time.Millisecond) // long enough for others to find nothing
			switch n.Add(1) {
			case 1:
				return delivery.RetryAfter(time.Second, errors.New("once"))
			case 2, 3:
				return delivery.Unavailable(errors.New("down"))
			}
			return nil
		}), testLane(), "x")
		r.start()
		db.write("x", 1)
		eventually(t, "delivered", db.empty)
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestRunIsReadyWithABacklogForADestinationThatIsDown(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		p := &place{}
		p.down.Store(true)
		r.to(t, "a", p.handler(), testLane(), "x")
		db.write("x", 3000)
		r.start()
		after(5 * time.Second)
		select {
		case <-r.Ready():
		default:
			t.Error("not ready: the sweep waits for the destination")
		}
	})
}

func TestRunFindsLateCommitsWhileALaneLags(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var c calls
		cfg := testLane()
		cfg.Concurrency = 1
		r.to(t, "a", c.handler(takes(100*time.Millisecond)), cfg, "x")
		r.start()
		late := db.begin()
		id := late.insert("x", 0)
		db.write("x", 300)
		after(5 * time.Second)
		db.set(func() { db.mute = true })
		late.commit()
		begin := time.Now()
		eventually(t, "the late event is delivered", func() bool { return c.delivered()[id] > 0 })
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("it took %v, with %d others left", took, db.unfinished())
		}
	})
}
