package queue

import (
	"slices"
	"testing"
	"time"
)

// TestIdleClaimersAreAccepted: refused claims are accepted when the database accepts claims again, even for claimers
// without work.
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

// TestRefusalIsHeardLate: a settlement was refused, and until its claimer hears so the row is free. The other claimers get
// it, and do not deliver it.
func TestRefusalIsHeardLate(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]faultKind{"refused": refused, "the connection is lost": lostBefore} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *bubble) {
				db, r := t.db, t.r
				var c calls
				r.to(t, "a", c.handler(nil), testLane(), "x")
				r.start()
				<-r.Ready()
				settled, claims := 0, 0
				db.set(func() {
					db.late = 1
					db.faults = func(op string) faultKind {
						if op != "settle" {
							return noFault
						}
						if settled++; settled > 1 {
							return noFault
						}
						claims = db.claims // the next one may come at once
						return kind
					}
				})
				first := db.write("x", 1)
				eventually(t, "refused", func() (is bool) {
					db.set(func() { is = settled > 0 })
					return is
				})
				r.Rescan()
				after(lateAnswer / 2)
				db.set(func() {
					if db.claims == claims {
						t.Error("nobody has claimed meanwhile")
					}
				})
				ids := slices.Concat(first, db.write("x", 3))
				eventually(t, "all delivered", db.empty)
				c.once(t, ids)
			})
		})
	}
}
