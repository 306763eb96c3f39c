package integration

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// incidents is an observer that passes on its incidents.
type incidents chan delivery.Incident

func (c incidents) Observe(i delivery.Incident) { c <- i }

// until waits for an incident of a kind.
func (c incidents) until(t *testing.T, kind delivery.IncidentKind) delivery.Incident {
	t.Helper()
	for {
		select {
		case i := <-c:
			if i.Kind == kind {
				return i
			}
		case <-time.After(patience):
			t.Fatalf("%v was not reported", kind)
		}
	}
}

// TestIncidents produces the incidents that an observer gets.
func TestIncidents(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			server := testenv.OwnPostgres(t, nil)
			e := envAt(t, server.URL("")).become(mode)
			seen := make(incidents, 1000)
			var down atomic.Bool
			r := e.relay(func(r *notifyd.Relay) {
				handlers := map[string]delivery.HandlerFunc{
					"bad": func(context.Context, *delivery.Event) error { return delivery.Permanent(errors.New("no")) },
					"down": func(context.Context, *delivery.Event) error {
						if down.Load() {
							return delivery.Unavailable(errors.New("gone"))
						}
						return nil
					},
				}
				for pattern, h := range handlers {
					if err := r.Handle(pattern, notifyd.Destination{Name: pattern, Handler: h}); err != nil {
						t.Fatal(err)
					}
				}
			}, notifyd.Config{Observer: seen})

			id := e.insert("bad", "1")
			if i := seen.until(t, delivery.IncidentDead); i.EventID != id || i.EventType != "bad" || i.Destination != "bad" || i.Err == nil || i.Time.IsZero() {
				t.Errorf("dead letter: %+v", i)
			}
			// The incident is reported when it is decided, and written a moment later.
			e.until("the delivery dead", `SELECT state = 'dead' FROM outbox_deliveries WHERE event_id = $1`, id)
			down.Store(true)
			e.insert("down", "1")
			if i := seen.until(t, delivery.IncidentDown); i.Destination != "down" || i.Err == nil {
				t.Errorf("unavailable: %+v", i)
			}
			if age, err := r.OldestWaiting(t.Context()); err != nil || age <= 0 {
				t.Errorf("OldestWaiting() = %v, %v", age, err)
			}
			if b, err := r.Backlog(t.Context()); err != nil || b.Destination("bad").Dead.N != 1 || b.Oldest == nil {
				t.Errorf("Backlog() = %+v, %v", b, err)
			} else if d := b.Destination("down"); d.Fresh.N+d.Retry.N+d.Running.N != 1 {
				t.Errorf("the backlog of the destination that is down: %+v", d)
			}
			down.Store(false)
			seen.until(t, delivery.IncidentUp)
			e.untilDone()
			if age, err := r.OldestWaiting(t.Context()); err != nil || age != 0 {
				t.Errorf("OldestWaiting() = %v, %v; want 0", age, err)
			}
			if err := server.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			// Both are reported, in the order in which they are noticed.
			lost := map[delivery.IncidentKind]bool{}
			for len(lost) < 2 {
				select {
				case i := <-seen:
					if i.Kind == delivery.IncidentDatabaseLost || i.Kind == delivery.IncidentListenerLost {
						lost[i.Kind] = i.Err != nil
					}
				case <-time.After(patience):
					t.Fatalf("reported %v", lost)
				}
			}
			if err := server.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			back := map[delivery.IncidentKind]bool{}
			for !back[delivery.IncidentDatabaseBack] || !back[delivery.IncidentListenerBack] {
				select {
				case i := <-seen:
					back[i.Kind] = true
				case <-time.After(patience):
					t.Fatalf("reported %v", back)
				}
			}
		})
	}
}
