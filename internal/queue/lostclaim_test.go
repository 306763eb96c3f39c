package queue

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/sleep"
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
					t.Fatal("no delivery was running")
				}
				db.set(func() { db.down = false })
				eventually(t, "all delivered", db.empty)
				c.once(t, ids)
			})
		})
	}
}

// TestRunStandsStillWhileASettlementIsRefused: a delivery whose result cannot be recorded is not repeated, and no other
// delivery starts, until the database accepts the result.
func TestRunStandsStillWhileASettlementIsRefused(t *testing.T) {
	t.Parallel()
	for name, handle := range map[string]func(context.Context, *delivery.Event) error{
		"delivered": nil,
		"failed":    fails(2, errors.New("no")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *bubble) {
				db, r := t.db, t.r
				var c calls
				r.to(t, "a", c.handler(handle), testLane(), "x")
				db.set(func() {
					db.faults = func(op string) faultKind {
						if op == "settle" {
							return refused
						}
						return noFault
					}
				})
				r.start()
				<-r.Ready()
				ids := db.write("x", 1)
				after(10 * time.Minute)
				more := db.write("x", 20) // each claim takes some of them
				after(10 * time.Minute)
				if n := c.n(); n != 1 {
					t.Errorf("%d attempts while nothing could be recorded", n)
				}
				s := r.Stats()
				if len(s.Refusals) != 1 || s.Refusals[0].Code != (refusal{}).SQLState() || s.DatabaseDown {
					t.Errorf("refusals %+v, down %t", s.Refusals, s.DatabaseDown)
				}
				if n := r.log.count("refuses a statement"); n < 15 || n > 25 { // each minute
					t.Errorf("logged %d times in 20 minutes", n)
				}
				db.set(func() { db.faults = nil })
				eventually(t, "delivered in the end", db.empty)
				if s := r.Stats(); len(s.Refusals) > 0 {
					t.Errorf("still refused: %+v", s.Refusals)
				}
				for _, id := range append(ids, more...) {
					if n := c.delivered()[id]; n != 1 {
						t.Errorf("event %d: delivered %d times", id, n)
					}
				}
			})
		})
	}
}

// TestRunStandsStillWhileLateAnswersAreRefused: the same for an answer that comes under a lease,
// which is renewed until the answer is written.
func TestRunStandsStillWhileLateAnswersAreRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var c calls
		r.to(t, "a", c.handler(takes(2*time.Second)), testLane(), "x")
		r.start()
		<-r.Ready()
		ids := db.write("x", 3)
		after(time.Second)
		db.set(func() {
			db.faults = func(op string) faultKind {
				if op == "finish" {
					return refused
				}
				return noFault
			}
		})
		after(10 * time.Second)
		ids = append(ids, db.write("x", 1)...)
		after(10 * time.Minute)
		if n := c.n(); n != 3 {
			t.Errorf("%d attempts while nothing could be recorded", n)
		}
		if s := r.Stats(); len(s.Refusals) != 1 || s.DatabaseDown {
			t.Errorf("refusals %+v, down %t", s.Refusals, s.DatabaseDown)
		}
		db.set(func() { db.faults = nil })
		eventually(t, "delivered in the end", db.empty)
		c.once(t, ids)
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
		db.set(func() { // the maintenance session's connection is gone: others see a dead relay
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
		row, ok := db.row(id, "a")
		if here, there := r.Stats().Fenced, next.Stats().Fenced; ok || r.log.count("refused") != 1 || here != 1 || there != 0 {
			t.Errorf("the late answer was not fenced off: %+v, %d answers refused here and %d there", row, here, there)
		}
	})
}

// slowTail is a relay whose destination was fast and has become slow: two of 60 events run, and
// many wait behind them under leases of 5 s.
type slowTail struct {
	*bubble

	here, there calls
	ids         []int64
	seen        int // calls before these
}

func newSlowTail(t *bubble, pause time.Duration) *slowTail {
	s := &slowTail{bubble: t}
	var slow atomic.Bool
	lane := testLane()
	lane.Concurrency = 2
	t.r.to(t, "a", s.here.handler(func(ctx context.Context, _ *delivery.Event) error {
		if slow.Load() {
			sleep.For(ctx, pause)
		}
		return nil
	}), lane, "x")
	t.r.start()
	<-t.r.Ready()
	t.db.write("x", 2000) // so that the lane counts as fast
	eventually(t, "all delivered", t.db.empty)
	s.seen = s.here.n()
	slow.Store(true)
	s.ids = t.db.write("x", 60)
	after(time.Second)
	return s
}

// takeOver has another relay deliver the events that the first one gives up, until done returns
// true and a minute longer. It returns how many calls of the first one, finished or not, were for
// events that the other has delivered.
func (s *slowTail) takeOver(done func() bool) (twice int) {
	next := newRelay(s, s.db, 2, testConfig())
	next.to(s, "a", s.there.handler(nil), testLane(), "x")
	next.start()
	eventually(s, "taken over", func() bool { return s.there.n() > 0 })
	eventually(s, "all delivered here or there", done)
	after(time.Minute)
	there := s.there.delivered()
	for _, one := range s.here.all()[s.seen:] {
		twice += there[one.id]
	}
	s.db.set(func() { s.db.cutOff = 0 })
	eventually(s, "all done", s.db.empty)
	if err := next.stop(); err != nil {
		s.Error(err)
	}
	return twice
}

// Deliveries wait for slow ones in a relay that cannot reach the database. They do not start when the lease is about to
// end: other relays may claim them then.
func TestRunShedsTheTailOfALease(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		s := newSlowTail(t, 900*time.Millisecond)
		began := time.Now()
		s.db.set(func() { s.db.cutOff = s.r.owner })
		twice := s.takeOver(func() bool {
			all := make(map[int64]bool)
			for _, one := range append(s.here.all()[s.seen:], s.there.all()...) {
				all[one.id] = true
			}
			return len(all) == len(s.ids)
		})
		// Their answers could not be written: five rounds of two, and the running ones.
		if twice > 16 {
			t.Errorf("%d of %d events were delivered by both", twice, len(s.ids))
		}
		for _, one := range s.here.all()[s.seen:] {
			if late := one.at.Sub(began); late > 5*time.Second {
				t.Errorf("event %d begins %v after the relay was cut off", one.id, late)
				break
			}
		}
	})
}

// A relay that was frozen, or cut off, renews its leases as soon as it is back. Others have taken
// them over by then: the deliveries that waited under them are not started either.
func TestRunShedsTheTailAfterAFreeze(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		s := newSlowTail(t, 9*time.Second) // across the end of the leases, and of the freeze
		renewals := 0
		s.db.set(func() {
			s.db.faults = func(op string) faultKind {
				if op == "renew" {
					if renewals++; renewals < 5 {
						return lostBefore // no lease is renewed for seven seconds
					}
				}
				return noFault
			}
		})
		if twice := s.takeOver(s.db.empty); twice > 4 {
			t.Errorf("%d events were delivered by both", twice)
		}
	})
}
