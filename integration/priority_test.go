package integration

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestPriority: in a queue, behind a backlog of a fast destination, the events of
// a more urgent one are delivered first; events for both come first to the urgent
// one, and in their turn to the other. The destinations of a stream do not wait
// for each other, and each gets the events of an aggregate in order.
func TestPriority(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			const backlog, urgent = 20_000, 40
			e, begin := newEnvIn(t, mode), time.Now()
			e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
				SELECT 'import', 'product', i % 500, '{}' FROM generate_series(1, $1) AS i`, backlog)
			e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
				SELECT CASE i % 2 WHEN 0 THEN 'order.placed' ELSE 'mail' END, 'product', i % 7, '{}' FROM generate_series(1, $1) AS i`, urgent)
			var (
				mu       sync.Mutex
				bulk     int
				ahead    = -1 // of the urgent ones
				mailed   int
				last     = make(map[string]int64) // by destination and aggregate
				tooEarly []string
				seen     = make(map[string]bool) // by destination and event
				copies   int
			)
			note := func(dest string, ev *delivery.Event) (first bool) {
				id := fmt.Sprint(dest, ev.ID)
				if seen[id] {
					copies++
					return false
				}
				seen[id] = true
				key := dest + ev.AggregateID
				if mode == outboxsql.ModeStream && ev.ID < last[key] {
					tooEarly = append(tooEarly, fmt.Sprintf("%sgot %d of %s at %v, after %d", dest, ev.ID, ev.AggregateID, time.Since(begin), last[key]))
				}
				last[key] = ev.ID
				return true
			}
			r := e.relay(func(r *notifyd.Relay) {
				for name, h := range map[string]delivery.HandlerFunc{
					"bulk": func(_ context.Context, ev *delivery.Event) error {
						mu.Lock()
						defer mu.Unlock()
						if note("bulk ", ev) {
							bulk++
						}
						return nil
					},
					"mail": func(_ context.Context, ev *delivery.Event) error {
						mu.Lock()
						defer mu.Unlock()
						if !note("mail ", ev) {
							return nil
						}
						if mailed++; mailed == urgent {
							ahead = bulk
						}
						return nil
					},
				} {
					priority := map[string]int{"mail": 10}[name]
					if err := r.Add(notifyd.Destination{Name: name, Handler: h, Lane: delivery.Lane{Priority: priority}}); err != nil {
						t.Fatal(err)
					}
				}
				for match, to := range map[string][]string{"import": {"bulk"}, "mail": {"mail"}, "order.placed": {"mail", "bulk"}} {
					if err := r.Route(match, to...); err != nil {
						t.Fatal(err)
					}
				}
			}, notifyd.Config{})
			e.untilDone()
			mu.Lock()
			defer mu.Unlock()
			if mailed != urgent || bulk != backlog+urgent/2 {
				t.Errorf("%d urgent deliveries and %d others, want %d and %d", mailed, bulk, urgent, backlog+urgent/2)
			}
			if copies > 0 && !r.lostClaim() {
				t.Errorf("%d deliveries came twice", copies)
			}
			if ahead < 0 || mode == outboxsql.ModeQueue && ahead > backlog/2 {
				t.Errorf("%d of %d came before the last urgent one", ahead, backlog)
			}
			if len(tooEarly) > 0 {
				t.Errorf("%d events came before an earlier one of their aggregate:\n%s\nin the end: %+v", len(tooEarly), strings.Join(tooEarly, "\n"), r.Stats())
			}
			t.Logf("%d of %d came before the last of %d urgent ones", ahead, backlog, urgent)
		})
	}
}
