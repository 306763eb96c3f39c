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
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestClockSetBack: the clock of the server is set back by an hour while a relay runs, and while none runs. A retry from
// before waits as long as its backoff, an event with available_at until that time, and a new event does not expire.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} {
		for _, runs := range []bool{true, false} {
			name := string(mode) + " stopped"
			if runs {
				name = string(mode) + " running"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				server, set := testenv.ClockPostgres(t, nil)
				e := envAt(t, server.URL(""))
				e.become(mode)
				handler := newRecorder(t)
				var works atomic.Bool
				handler.answer = func(_ context.Context, e *delivery.Event) error {
					if e.Type == "retried" && !works.Load() {
						return errors.New("not yet")
					}
					return nil
				}
				start := func() *running {
					return e.relay(func(r *notifyd.Relay) {
						lane := delivery.Lane{Backoff: delivery.Backoff{Initial: 4 * time.Second, Max: 4 * time.Second}, ExpiresAfter: 20 * time.Minute}
						if err := r.Handle("*", notifyd.Destination{Name: "d", Handler: handler, Lane: lane}); err != nil {
							t.Fatal(err)
						}
					}, notifyd.Config{PollInterval: 10 * time.Minute})
				}
				relay := start()
				later := scan[int64](e, `INSERT INTO outbox_events (event_type, payload, available_at) VALUES ('later', '1', now() + interval '2 hours') RETURNING id`)
				retried := e.insert("retried", "1")
				e.until("stored deliveries", `SELECT count(*) = 2 FROM outbox_deliveries WHERE state = 'retry'`)
				if !runs {
					if err := relay.end(); err != nil {
						t.Fatal(err)
					}
				}
				works.Store(true)
				set(-time.Hour)
				e.until("the clock of the server", `SELECT clock_timestamp() < $1`, time.Now().Add(-time.Minute))
				if !runs {
					relay = start()
				}
				fresh := e.insert("fresh", "1")
				e.until("all but one delivered", `SELECT count(*) = 1 AND min(event_id) = $1 FROM outbox_deliveries`, later)
				if handler.times(retried) < 2 || handler.times(fresh) != 1 || handler.times(later) != 0 {
					t.Errorf("calls: %d, %d, %d", handler.times(retried), handler.times(fresh), handler.times(later))
				}
				if !scan[bool](e, `SELECT d.available_at = v.available_at FROM outbox_deliveries AS d JOIN outbox_events AS v ON v.id = d.event_id`) {
					t.Error("the delayed event has another time")
				}
				if err := relay.end(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestClockAheadForAMoment: a relay writes a retry while the clock of the server is ahead for less than the time between two
// readings, or commits it after the correction that follows a step. The retry does not wait until the clock has caught up.
func TestClockAheadForAMoment(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.become(mode)
			handler := newRecorder(t)
			var works atomic.Bool
			handler.answer = func(context.Context, *delivery.Event) error {
				if !works.Load() {
					return errors.New("not yet")
				}
				return nil
			}
			start := func() *running {
				return e.relay(func(r *notifyd.Relay) {
					lane := delivery.Lane{Backoff: delivery.Backoff{Initial: 2 * time.Hour, Max: 2 * time.Hour}}
					if err := r.Handle("*", notifyd.Destination{Name: "d", Handler: handler, Lane: lane}); err != nil {
						t.Fatal(err)
					}
				}, notifyd.Config{PollInterval: 10 * time.Minute})
			}
			fail := func() {
				works.Store(false)
				id := e.insert("a", "1")
				e.until("the retry", `SELECT count(*) = 1 FROM outbox_deliveries WHERE event_id = $1 AND state = 'retry'`, id)
				works.Store(true)
				e.exec(`UPDATE outbox_deliveries SET updated_at = clock_timestamp() + interval '1 hour', available_at = clock_timestamp() + interval '1 hour'`)
			}
			const none = `SELECT count(*) = 0 FROM outbox_deliveries`

			relay := start()
			fail()
			if err := relay.end(); err != nil {
				t.Fatal(err)
			}
			relay = start()
			e.until("the delivery after the first correction", none)
			fail()
			e.until("the delivery after a later one", none)
			if err := relay.end(); err != nil {
				t.Error(err)
			}
		})
	}
}
