package queue

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/sleep"
)

// TestRunPoison: events over which the destination fails, all of them before the others,
// hold these up for a few pauses each, and become dead letters while others are delivered.
func TestRunPoison(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second
	for name, harm := range map[string]func(context.Context) error{
		"drops": func(context.Context) error { return delivery.Unavailable(errors.New("connection reset")) },
		"lingers": func(ctx context.Context) error {
			sleep.For(ctx, timeout/2)
			return delivery.Unavailable(errors.New("no answer"))
		},
		"hangs": func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		},
	} {
		for _, k := range []int64{1, 8, 40} {
			t.Run(fmt.Sprintf("%d %s", k, name), func(t *testing.T) {
				t.Parallel()
				inBubble(t, func(t *bubble) {
					db, r := t.db, t.r
					var c calls
					cfg := testLane()
					cfg.Timeout, cfg.LongestPause = timeout, time.Second
					r.to(t, "a", c.handler(func(ctx context.Context, e *delivery.Event) error {
						if e.ID <= k {
							return harm(ctx)
						}
						return nil
					}), cfg, "x")
					r.start()
					<-r.Ready()
					begin := time.Now()
					ids := db.write("x", int(4*k)+20)
					within := time.Second + time.Duration(k)*(2*cfg.LongestPause+2*timeout)
					for c.good(k) < len(ids)-int(k) && time.Since(begin) < within {
						after(10 * time.Millisecond)
					}
					if n := c.good(k); n < len(ids)-int(k) {
						t.Fatalf("%d of %d good events are delivered within %v", n, len(ids)-int(k), within)
					}
					t.Logf("all good events are delivered after %v", time.Since(begin))
					for tries := 0; db.count(deliveries.Dead) < int(k); tries++ {
						if tries > 100*int(k) {
							t.Fatalf("%d of %d bad events are dead", db.count(deliveries.Dead), k)
						}
						ids = append(ids, db.write("x", 1)...)
						after(200 * time.Millisecond)
					}
					eventually(t, "the rest is delivered", func() bool { return c.good(k) == len(ids)-int(k) })
					c.once(t, ids[k:])
					for _, one := range c.all() {
						if one.id > k && one.attempt != 1 {
							t.Errorf("an attempt was counted for a good event: %+v", one)
						}
					}
				})
			})
		}
	}
}

// good counts the events above an id that were delivered.
func (c *calls) good(above int64) (n int) {
	for id := range c.delivered() {
		if id > above {
			n++
		}
	}
	return n
}

// count counts the rows in a state.
func (db *fakeDB) count(s deliveries.State) (n int) {
	db.set(func() {
		for _, row := range db.rows {
			if row.State == s {
				n++
			}
		}
	})
	return n
}
