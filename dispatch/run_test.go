package dispatch

import (
	"testing"
	"time"
)

func TestRunDeliversAnnouncedEventsAtOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, db *fakeDB, r *relay) {
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
