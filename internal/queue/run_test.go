package queue

import (
	"context"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/sleep"
)

func TestRunDeliversAnnouncedEventsAtOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var c calls
		r.to(t, "a", c.handler(nil), testLane(), "x")
		r.start()
		<-r.Ready()
		after(10 * time.Second)
		begin := time.Now()
		ids := db.write("x", 1)
		eventually(t, "delivered", func() bool { return c.n() == 1 })
		if took := c.all()[0].at.Sub(begin); took > 2*db.roundTrip {
			t.Errorf("delivery began after %v", took)
		}
		ids = append(ids, db.write("x", 5000)...)
		eventually(t, "all delivered", db.empty)
		c.once(t, ids)
	})
}

// takes is a handler that takes d.
func takes(d time.Duration) func(context.Context, *delivery.Event) error {
	return func(ctx context.Context, _ *delivery.Event) error {
		sleep.For(ctx, d)
		return ctx.Err()
	}
}

func TestRunLeasesWhatOutlivesTheLockBudget(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var c calls
		r.to(t, "a", c.handler(takes(time.Second)), testLane(), "x")
		r.start()
		<-r.Ready()
		id := db.write("x", 1)[0]
		after(testConfig().LockBudget - 5*time.Millisecond)
		if _, ok := db.row(id, "a"); ok {
			t.Error("leased before the lock budget was used up")
		}
		after(10 * time.Millisecond)
		if row, _ := db.row(id, "a"); row.State != deliveries.Running || row.owner != r.owner {
			t.Errorf("after the lock budget: %+v", row)
		}
		if e := db.event(id); e.locked != nil || e.state != "deferred" {
			t.Errorf("event after the lock budget: %+v", e)
		}
		after(time.Second)
		if !db.empty() {
			t.Error("the late answer was not settled")
		}
		c.once(t, []int64{id})
	})
}

func TestRunLeasesSlowLanesAtOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var c calls
		r.to(t, "a", c.handler(takes(time.Second)), testLane(), "x")
		r.start()
		ids := db.write("x", 8)
		eventually(t, "the lane counts as slow", db.empty)
		claims := db.claimed()
		ids = append(ids, db.write("x", 1)...)
		after(5 * time.Millisecond)
		if row, _ := db.row(ids[8], "a"); row.State != deliveries.Running {
			t.Errorf("not leased at once: %+v", row)
		}
		ids = append(ids, db.write("x", 100)...)
		eventually(t, "all delivered", db.empty)
		c.once(t, ids)
		if more := db.claimed() - claims; more > 300 {
			t.Errorf("%d claims for 101 events", more)
		}
	})
}
