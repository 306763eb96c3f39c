package dispatch

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"
)

func TestRunSavesWhatWasDeliveredWhenTheDatabaseGoes(t *testing.T) {
	t.Parallel()
	for name, length := range map[string]time.Duration{"for a moment": 100 * time.Millisecond, "for a minute": 40 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *bubble) {
				db, r := t.db, t.r
				var c calls
				r.to(t, "a", c.handler(takes(5*time.Millisecond)), testLane(), "x")
				r.start()
				<-r.Ready()
				ids := db.write("x", 200)
				after(time.Millisecond)
				db.set(func() { db.down = true })
				after(length)
				if db.unfinished() == 0 {
					t.Fatal("nothing was under way")
				}
				db.set(func() { db.down = false })
				eventually(t, "all delivered", db.empty)
				c.once(t, ids)
			})
		})
	}
}

func TestRunGivesUpOnASettlementThatIsRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var c calls
		r.to(t, "a", c.handler(nil), testLane(), "x")
		refusals := 0
		db.set(func() {
			db.faults = func(op string) faultKind {
				if op == "settle" && refusals <= salvageTries {
					refusals++
					return refused
				}
				return noFault
			}
		})
		r.start()
		ids := db.write("x", 1)
		eventually(t, "delivered in the end", db.empty)
		if n := c.delivered()[ids[0]]; n != 2 {
			t.Errorf("delivered %d times", n)
		}
	})
}

func TestRunFencesALostLease(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var c, other calls
		r.to(t, "a", c.handler(takes(8*time.Second)), testLane(), "x")
		r.start()
		id := db.write("x", 1)[0]
		after(time.Second)
		db.set(func() { // the connection that shows life is gone: others see a dead relay
			delete(db.alive, r.owner)
			db.ears = nil
			db.faults = func(op string) faultKind {
				if op == "renew" {
					return lostBefore
				}
				return noFault
			}
		})
		next := newRelay(t, db, 2, testConfig())
		next.to(t, "a", other.handler(nil), testLane(), "x")
		next.start()
		eventually(t, "taken over", func() bool { return other.n() == 1 && db.empty() })
		after(20 * time.Second)
		if err := next.stop(); err != nil {
			t.Error(err)
		}
		if row, ok := db.row(id, "a"); ok || r.log.count("were refused") != 1 {
			t.Errorf("the late answer was not fenced off: %+v", row)
		}
	})
}

// What waits behind slow deliveries in a relay that does not reach the database is not
// begun with when the lease is about to end: others have it from then on.
func TestRunShedsTheTailOfALease(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var (
			c, other calls
			slow     atomic.Bool
		)
		lane := testLane()
		lane.Concurrency = 2
		r.to(t, "a", c.handler(func(ctx context.Context, _ *Event) error {
			if slow.Load() {
				sleep(ctx, 900*time.Millisecond)
			}
			return nil
		}), lane, "x")
		r.start()
		<-r.Ready()
		db.write("x", 2000) // which shows that the destination is fast
		eventually(t, "all delivered", db.empty)
		seen := c.n()
		slow.Store(true)
		ids := db.write("x", 60)
		after(time.Second) // some run, and many wait under leases of 5 s
		began := time.Now()
		db.set(func() { db.cutOff = r.owner })
		next := newRelay(t, db, 2, testConfig())
		next.to(t, "a", other.handler(nil), testLane(), "x")
		next.start()
		eventually(t, "taken over", func() bool { return other.n() > 0 })
		eventually(t, "all delivered here or there", func() bool {
			acks := make(map[int64]int)
			for _, one := range append(c.all()[seen:], other.all()...) {
				acks[one.id]++
			}
			return len(acks) == len(ids)
		})
		after(time.Minute)
		twice := 0
		here := c.delivered()
		for id := range other.delivered() {
			twice += here[id]
		}
		// Their answers could not be written: five rounds of two, and what was under way.
		if twice > 16 {
			t.Errorf("%d of %d events were delivered by both", twice, len(ids))
		}
		for _, one := range c.all()[seen:] {
			if late := one.at.Sub(began); late > 5*time.Second {
				t.Errorf("event %d begins %v after the relay was cut off", one.id, late)
				break
			}
		}
		db.set(func() { db.cutOff = 0 })
		eventually(t, "all done", db.empty)
		if err := next.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A relay that was frozen, or cut off, renews its leases as soon as it is back. Others
// have taken them over by then: what waited under them is not begun with, either.
func TestRunShedsTheTailAfterAFreeze(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var (
			c, other calls
			slow     atomic.Bool
		)
		lane := testLane()
		lane.Concurrency = 2
		r.to(t, "a", c.handler(func(ctx context.Context, _ *Event) error {
			if slow.Load() {
				sleep(ctx, 9*time.Second) // across the end of the leases, and of the freeze
			}
			return nil
		}), lane, "x")
		r.start()
		<-r.Ready()
		db.write("x", 2000) // which shows that the destination is fast
		eventually(t, "all delivered", db.empty)
		seen := c.n()
		slow.Store(true)
		db.write("x", 60)
		after(time.Second) // two run, and many wait under leases of 5 s
		renewals := 0
		db.set(func() {
			db.faults = func(op string) faultKind {
				if op == "renew" {
					if renewals++; renewals < 5 {
						return lostBefore // nobody renews anything for seven seconds
					}
				}
				return noFault
			}
		})
		next := newRelay(t, db, 2, testConfig())
		next.to(t, "a", other.handler(nil), testLane(), "x")
		next.start()
		eventually(t, "taken over", func() bool { return other.n() > 0 })
		eventually(t, "all done", db.empty)
		after(time.Minute)
		twice := 0
		for _, one := range c.all()[seen:] {
			twice += other.delivered()[one.id]
		}
		if twice > 4 {
			t.Errorf("%d events were delivered by both", twice)
		}
		if err := next.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestIsDown(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"no answer":      {io.EOF, true},
		"an answer":      {refusal{}, false},
		"wrapped answer": {errors.Join(errors.New("settle"), refusal{}), false},
		"shutting down":  {state("57P01"), true},
		"no connection":  {state("08006"), true},
		"disk full":      {state("53100"), true},
		"read only":      {state("25006"), true},
		"no code":        {state(""), false},
	} {
		if got := IsDown(tc.err); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

type state string

func (s state) Error() string    { return "state " + string(s) }
func (s state) SQLState() string { return string(s) }
