package dispatch

import (
	"fmt"
	"testing"
	"time"
)

// TestRunBesideSomebodyElsesTransaction: after a lost connection a relay does not know
// whether events are still locked until all transactions of that moment have ended, and
// one of them does not. It delivers all the same, with a lane that lags behind.
func TestRunBesideSomebodyElsesTransaction(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		cfg := testConfig()
		cfg.Batch = 10
		r := newRelay(t, t.db, 2, cfg)
		var c calls
		lane := testLane()
		lane.Concurrency = 2
		r.to(t, "a", c.handler(takes(5*time.Millisecond)), lane, "x")
		other := t.db.begin() // never ends
		other.insert("x", 0)
		for i := range 500 {
			w := t.db.begin()
			w.insertKeyed("x", fmt.Sprint(i%7), 0)
			w.commit()
		}
		settled := 0
		t.db.set(func() {
			t.db.faults = func(op string) faultKind {
				if op == "settle" {
					settled++
				}
				if op == "settle" && settled == 3 {
					return lostBefore
				}
				return noFault
			}
		})
		r.start()
		eventually(t, "all delivered", func() bool { return len(c.delivered()) == 500 && t.db.unfinished() == 0 })
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
}
