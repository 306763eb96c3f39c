package queue

import (
	"testing"
	"time"
)

// TestIdleClaimersAreAccepted: claims that were refused are accepted when the database does, also by
// claimers for which there is no work.
func TestIdleClaimersAreAccepted(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		cfg := testConfig()
		cfg.PollInterval = time.Hour
		db := t.db
		r := newRelay(t, db, 2, cfg)
		var c calls
		r.to(t, "a", c.handler(nil), testLane(), "x")
		db.faults = func(op string) faultKind {
			if op == "claim" {
				return refused
			}
			return noFault
		}
		r.start()
		defer r.stop() //nolint:errcheck // the test is about what precedes it
		ids := db.write("x", 3)
		after(time.Minute)
		if n := len(r.Dispatcher.Stats().Refusals); n != cfg.Claims {
			t.Errorf("%d claimers of %d are refused", n, cfg.Claims)
		}
		db.set(func() { db.faults = nil })
		eventually(t, "all delivered", db.empty)
		c.once(t, ids)
		after(time.Minute)
		if all := r.Dispatcher.Stats().Refusals; len(all) > 0 {
			t.Errorf("still refused: %+v", all)
		}
	})
}
