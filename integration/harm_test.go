package integration

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/observe"
)

// nilError is the error type of a handler that returns a nil pointer as an error,
// which is not nil.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

// TestHandlersThatDoHarm: a handler that returns an unreadable error, ends its
// goroutine, or ignores the end of its context, harms only that event, which
// becomes a dead letter, even if all workers are busy with such events.
func TestHandlersThatDoHarm(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for name, harm := range map[string]func(over chan struct{}) error{
		"a typed nil":              func(chan struct{}) error { var e *nilError; return e },
		"the end of its goroutine": func(chan struct{}) error { runtime.Goexit(); return nil },
		"nothing, for ever":        func(over chan struct{}) error { <-over; return nil },
	} {
		for _, mode := range bothModes() {
			t.Run(name+"/"+string(mode), func(t *testing.T) {
				t.Parallel()
				e := newEnvIn(t, mode)
				over := make(chan struct{})
				const workers = 2
				for range workers {
					e.insert("bad", `{}`)
				}
				e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'fine', '{}' FROM generate_series(1, 20)`)
				r := e.relay(handleAll(t, delivery.HandlerFunc(func(_ context.Context, ev *delivery.Event) error {
					if ev.Type == "bad" {
						return harm(over)
					}
					return nil
				}), delivery.Lane{MaxAttempts: 1, Concurrency: workers, Timeout: 100 * time.Millisecond}), notifyd.Config{})
				e.untilAll("the others are delivered", "all", `e.event_type = 'fine'`)
				e.until("dead", `SELECT count(*) = $1 FROM outbox_deliveries WHERE event_type = 'bad' AND state = 'dead' AND attempts = 1 AND last_error <> ''`, workers)
				close(over)
				r.untilDestination("idle", func(d *observe.DestinationStats) bool { return d.Stuck == 0 && d.Running == 0 })
				if d := r.Stats().Destinations[0]; d.Dead != workers || d.Delivered != 20 {
					t.Errorf("%+v", d)
				}
			})
		}
	}
}
