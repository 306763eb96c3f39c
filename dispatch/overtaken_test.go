package dispatch

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestRunFindsWhatCameUpInFront: an event under way fails, and an earlier one of its
// aggregate has been committed meanwhile. Its row is the first of the line then, and
// nothing but a look at the line finds it.
func TestRunFindsWhatCameUpInFront(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]error{
		"it fails":        errors.New("rejected"),
		"it is throttled": Throttled(0, errors.New("429")),
		"it dies":         Permanent(errors.New("gone")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *bubble) {
				db, r := t.db, t.r
				var c calls
				lane := testLane()
				lane.BlockOnDead = true
				r.to(t, "a", c.handler(func(ctx context.Context, e *Event) error {
					sleep(ctx, 300*time.Millisecond) // so that it goes on under a lease
					if e.ID == 2 && c.n() == 1 {
						return fault
					}
					return nil
				}), lane, "x")
				r.start()
				<-r.Ready()
				first, second := db.begin(), db.begin()
				first.insertKeyed("x", "k", 0)
				second.insertKeyed("x", "k", 0)
				second.commit()
				eventually(t, "under way", func() bool { return c.n() == 1 })
				after(200 * time.Millisecond)
				first.commit()
				begin := time.Now()
				eventually(t, "the first is delivered", func() bool { return c.delivered()[1] == 1 })
				if took := time.Since(begin); took > readLinesEvery/3 {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}
