package queue

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/sleep"
)

// TestRunPutsAside: in two minutes of outage each probe is another event than the one
// before, and nothing else is different from any outage.
func TestRunPutsAside(t *testing.T) {
	t.Parallel()
	for name, takes := range map[string]time.Duration{"fails at once": 0, "fails late, under a lease": time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *bubble) {
				db, r := t.db, t.r
				var c calls
				var down atomic.Bool
				down.Store(true)
				losses := make(map[int64]int)
				last, again := int64(0), 0 // of the probes
				cfg := testLane()
				cfg.MaxAttempts, cfg.LongestPause = 1, 2*time.Second
				if takes > 0 {
					cfg.Concurrency = 1 // deliveries that had a lease take turns anyway
				}
				r.to(t, "a", c.handler(func(ctx context.Context, e *delivery.Event) error {
					if !down.Load() {
						return nil
					}
					sleep.For(ctx, takes)
					c.mu.Lock()
					defer c.mu.Unlock()
					losses[e.ID]++
					if e.ID == last {
						again++
					}
					last = e.ID
					return delivery.Unavailable(errors.New("502"))
				}), cfg, "x")
				r.start()
				<-r.Ready()
				var ids []int64
				w := db.begin()
				for i := range 300 {
					ids = append(ids, w.insertKeyed("x", []string{"", "k", "l", "m"}[i%4], 0))
				}
				w.commit()
				after(10 * time.Second) // deliveries that ran when the breaker opened have ended
				c.mu.Lock()
				c.most = 0
				c.mu.Unlock()
				seen := c.n()
				for range 2 * 60 {
					after(time.Second)
					if s := r.Stats().Destinations[0]; !s.Down || s.Failed != 0 || s.Dead != 0 || s.Classes[delivery.ClassEvent] != 0 {
						t.Fatalf("an event that is put aside was taken for an answer: %+v", s)
					}
				}
				probes := c.n() - seen
				if probes < 30 || probes > 150 || c.atOnce() != 1 {
					t.Errorf("%d probes in two minutes, %d at once", probes, c.atOnce())
				}
				for id := range losses {
					if row, ok := db.row(id, "a"); !ok || row.Failures != 0 || row.State == deliveries.Dead ||
						row.State != deliveries.Running && (row.Class != "destination" || row.Err != "502") { // or it is the probe under way
						t.Errorf("event %d was put aside: %+v", id, row.Entry)
					}
				}
				if len(losses) < probes/3 || again > probes/10 {
					t.Errorf("%d events were tried with %d probes, %d times the same one again", len(losses), probes, again)
				}
				down.Store(false)
				eventually(t, "all delivered", db.empty)
				c.once(t, ids)
				c.uncounted(t.T)
				if n, m := r.log.count("destination down"), r.log.count("destination failed again during recovery"); n != 1 || m != 0 {
					t.Errorf("%d times unavailable, %d times again: it was one outage", n, m)
				}
			})
		})
	}
}

// uncounted fails the test if an attempt was counted.
func (c *calls) uncounted(t *testing.T) {
	t.Helper()
	for _, one := range c.all() {
		if one.attempt != 1 {
			t.Fatalf("an attempt was counted: %+v", one)
		}
	}
}
