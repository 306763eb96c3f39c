package dispatch

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A dead letter that blocks is discarded before the row of what waited behind it in memory is
// written: that is looked for, as nobody else would find it.
func TestRunDiscardBeforeTheNextIsWritten(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var a, b calls
		lane := testLane()
		lane.BlockOnDead = true
		r.to(t, "a", a.handler(func(ctx context.Context, e *Event) error {
			if e.ID > 1 {
				return nil
			}
			sleep(ctx, 5*time.Millisecond)
			return Permanent(errors.New("no"))
		}), lane, "x")
		r.to(t, "b", b.handler(takes(80*time.Millisecond)), testLane())
		r.fanOut(t, "xy", "a", "b")
		r.start()
		<-r.Ready()
		after(time.Second)
		for _, typ := range []string{"x", "xy"} {
			w := db.begin()
			w.insertKeyed(typ, "k", 0)
			w.commit()
			after(2 * time.Millisecond)
		}
		after(20 * time.Millisecond)
		if db.mend(func(Ref) deed { return discard }) != 1 || db.event(2).state != "fresh" {
			t.Fatalf("event 2 is %s", db.event(2).state)
		}
		begin := time.Now()
		eventually(t, "all delivered", db.empty)
		if took := time.Since(begin); took > soonAgain {
			t.Errorf("delivered after %v: %+v", took, a.all())
		}
	})
}
