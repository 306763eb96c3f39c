package dispatch

import (
	"context"
	"testing"
	"time"
)

// TestRunTakesOverSlots: the aggregates of a relay that died go on as soon as its slots
// may be used: what a look comes too early for does not wait for the one after it.
func TestRunTakesOverSlots(t *testing.T) {
	t.Parallel()
	const most = slotsEvery + slotsGrace + 50*time.Millisecond // for the questions and the delivery
	for moment := time.Duration(0); moment < slotsEvery; moment += slotsEvery / 10 {
		inBubble(t, func(t *bubble) {
			other := &fakeSlots{db: t.db, owner: 9}
			if _, err := other.Share(context.Background(), true); err != nil {
				t.Fatal(err)
			}
			var c calls
			t.r.to(t, "a", c.handler(nil), testLane(), "x")
			t.r.start()
			<-t.r.Ready()
			w := t.db.begin()
			w.insertKeyed("x", "k", 0)
			w.commit()
			after(time.Second + moment)
			if c.n() > 0 {
				t.Error("the event is delivered by a relay that has no slots")
			}
			other.close()
			begin := time.Now()
			eventually(t, "delivered", func() bool { return c.n() > 0 })
			if took := time.Since(begin); took > most {
				t.Errorf("%v after the death of the other relay, %v at most", took, most)
			}
		})
	}
}

// A delayed event that is due belongs to the relay that has the slot of its aggregate,
// though that has no room for it: what is written later would else go past it there. It
// goes with the slot.
func TestRunDelayedEventIsOfASlot(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		other := newRelay(t, db, 2, testConfig())
		var c calls
		for _, one := range []*relay{r, other} {
			one.to(t, "a", c.handler(nil), testLane(), "x")
			one.start()
			<-one.Ready()
		}
		after(5 * time.Second) // each has its half
		key := ""
		db.set(func() {
			for k := range Slots {
				if db.slots[k] == other.slots {
					key = string(rune(Slots + k)) // see inSlots
				}
			}
		})
		// delayed writes an event for which the relay of its slot has no room when it is due.
		delayed := func() {
			t.Helper()
			if err := other.Pause("a"); err != nil {
				t.Error(err)
			}
			n := c.n()
			w := db.begin()
			w.insertKeyed("x", key, 500*time.Millisecond)
			w.commit()
			after(5 * time.Second)
			if c.n() > n {
				t.Error("the event is delivered by a relay that does not have its slot")
			}
		}
		delayed()
		begin := time.Now()
		if err := other.Resume("a"); err != nil {
			t.Error(err)
		}
		eventually(t, "delivered", db.empty)
		if took := time.Since(begin); took > time.Second {
			t.Errorf("delivered %v after there was room", took)
		}
		delayed()
		if err := other.stop(); err != nil {
			t.Error(err)
		}
		eventually(t, "delivered by the other", db.empty)
	})
}
