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
