package integration

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/outbox"
)

func TestFailsTwiceThenSucceeds(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			h.answer = func(_ context.Context, event *delivery.Event) error {
				if event.Attempt < 3 {
					return errors.New("not yet")
				}
				return nil
			}
			e.relay(handleAll(t, h, delivery.Lane{Backoff: quick()}), notifyd.Config{PollInterval: never}) // retries need no poll
			id := e.insert("order.created", `{}`)
			for attempt := 1; attempt <= 3; attempt++ {
				if got := h.next(); got.Attempt != attempt {
					t.Errorf("attempt %d, want %d", got.Attempt, attempt)
				}
			}
			e.untilState(id, "done")
			if n := scan[int](e, `SELECT count(*) FROM outbox_deliveries`); n != 0 {
				t.Errorf("%d deliveries left", n)
			}
		})
	}
}

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		answer   func() error
		lane     delivery.Lane
		attempts int
		text     string
	}{
		"permanent failure": {
			answer: func() error { return delivery.Permanent(errors.New("no such customer")) }, attempts: 1, text: "no such customer",
		},
		"attempts used up": {
			answer: func() error { return errors.New("try again") }, lane: delivery.Lane{MaxAttempts: 3}, attempts: 3, text: "try again",
		},
		"panic": {
			answer: func() error { panic("index out of luck") }, lane: delivery.Lane{MaxAttempts: 2}, attempts: 2, text: "index out of luck",
		},
		"timeout": {
			answer: nil, lane: delivery.Lane{MaxAttempts: 1, Timeout: 50 * time.Millisecond}, attempts: 1, text: "delivery timeout of 50ms",
		},
	}
	for name, test := range tests {
		for _, mode := range bothModes() {
			t.Run(name+"/"+string(mode), func(t *testing.T) {
				t.Parallel()
				e, h := newEnvIn(t, mode), newRecorder(t)
				h.answer = func(ctx context.Context, _ *delivery.Event) error {
					if test.answer == nil {
						<-ctx.Done()
						return ctx.Err()
					}
					return test.answer()
				}
				lane := test.lane
				lane.Backoff = quick()
				e.relay(handleAll(t, h, lane), notifyd.Config{})
				id := e.insert("order.created", `{}`)
				e.untilState(id, "done")
				if n := h.times(id); n != test.attempts {
					t.Errorf("handler was called %d times, want %d", n, test.attempts)
				}
				text := scan[string](e, `SELECT state || ' ' || attempts || ' ' || error_class || ' ' || last_error FROM outbox_deliveries WHERE event_id = $1`, id)
				if !strings.HasPrefix(text, "dead ") || !strings.Contains(text, " event ") || !strings.Contains(text, test.text) {
					t.Errorf("dead letter is %q", text)
				}
			})
		}
	}
}

func TestFanOut(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, good, bad, late := newEnvIn(t, mode), newRecorder(t), newRecorder(t), newRecorder(t)
			bad.answer = func(context.Context, *delivery.Event) error { return delivery.Permanent(errors.New("never")) }
			late.answer = func(_ context.Context, event *delivery.Event) error {
				if event.Attempt == 1 {
					return errors.New("later")
				}
				return nil
			}
			e.relay(func(r *notifyd.Relay) {
				err := errors.Join(r.Add(notifyd.Destination{Name: "good", Handler: good}), r.Add(notifyd.Destination{Name: "bad", Handler: bad}), r.Add(notifyd.Destination{Name: "late", Handler: late, Lane: delivery.Lane{Backoff: quick()}}),
					r.Route("order.*", "good", "bad", "late"))
				if err != nil {
					t.Fatal(err)
				}
			}, notifyd.Config{})
			id := e.insert("order.created", `{}`)
			e.untilState(id, "done")
			if g, b, l := good.times(id), bad.times(id), late.times(id); g != 1 || b != 1 || l != 2 {
				t.Errorf("delivered %d, %d and %d times, want 1, 1 and 2", g, b, l)
			}
			if text := scan[string](e, `SELECT string_agg(destination || ' ' || state, ',') FROM outbox_deliveries`); text != "bad dead" {
				t.Errorf("left in outbox_deliveries: %s", text)
			}
		})
	}
}

func TestUnroutedEventsWaitForARoute(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			known := func(r *notifyd.Relay) {
				if err := r.Handle("known", notifyd.Destination{Name: "known", Handler: h}); err != nil {
					t.Fatal(err)
				}
			}
			first := e.relay(known, notifyd.Config{})
			for range 3 {
				e.insert("unknown", `{}`)
			}
			e.until("three unrouted", `SELECT count(*) = 3 FROM outbox_deliveries WHERE state = 'unrouted' AND destination = ''`)
			if n := strings.Count(first.log.text(), "no route matches"); n != 1 {
				t.Errorf("reported %d times, want once", n)
			}
			if err := first.end(); err != nil {
				t.Fatal(err)
			}
			e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
			e.untilAll("the unrouted events delivered", "all", `true`)
			if n := scan[int](e, `SELECT count(*) FROM outbox_deliveries`); n != 0 || len(h.calls) != 3 {
				t.Errorf("%d delivered and %d left, want 3 and 0", len(h.calls), n)
			}
		})
	}
}

func TestDelayedEvent(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: never})
			err := pgx.BeginFunc(e.ctx, e.pool, func(tx pgx.Tx) error {
				return outbox.Write(e.ctx, tx, outbox.Event{Type: "later", Payload: 1, AvailableAt: time.Now().Add(time.Second)})
			})
			if err != nil {
				t.Fatal(err)
			}
			// If the machine stalls for that second, the wait cannot be observed.
			e.until("event waits", `SELECT EXISTS (SELECT FROM outbox_deliveries) OR clock_timestamp() > available_at FROM outbox_events`)
			h.next()
			if early := scan[bool](e, `SELECT clock_timestamp() < available_at FROM outbox_events`); early {
				t.Error("delivered before its time")
			}
			e.untilDone()
		})
	}
}

func TestOutageCountsNoAttempt(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h, other := newEnvIn(t, mode), newRecorder(t), newRecorder(t)
			up := make(chan struct{})
			h.answer = func(context.Context, *delivery.Event) error {
				select {
				case <-up:
					return nil
				default:
					return delivery.Unavailable(errors.New("connection refused"))
				}
			}
			r := e.relay(func(r *notifyd.Relay) {
				if err := errors.Join(r.Handle("mail", notifyd.Destination{Name: "mail", Handler: h, Lane: delivery.Lane{MaxAttempts: 1, Concurrency: 1}}), r.Handle("log", notifyd.Destination{Name: "log", Handler: other})); err != nil {
					t.Fatal(err)
				}
			}, notifyd.Config{})
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'mail', '1' FROM generate_series(1, 2000)`)
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'log', '1' FROM generate_series(1, 2000)`)
			e.untilAll("the other destination's events delivered", "log", `e.event_type = 'log'`)
			for range 5 { // probes, one at a time
				h.next()
			}
			// A probe that outlasts the lock budget gets a lease, and its event a row: at
			// most those of the five probes and of the current one.
			left := e.untouched("mail", "mail")
			if rows := scan[int](e, `SELECT count(*) FROM outbox_deliveries`); left < 1994 || rows > 6 {
				t.Errorf("%d of 2000 events are untouched, %d have a row", left, rows)
			}
			close(up)
			e.untilDone()
			if n := scan[int](e, `SELECT count(*) FROM outbox_deliveries`); n != 0 {
				t.Errorf("%d deliveries left", n)
			}
			if n := strings.Count(r.log.text(), "destination down"); n != 1 {
				t.Errorf("outage was reported %d times, want once", n)
			}
		})
	}
}

// TestOutageIsProbedOneAtATime: however many calls a destination takes at once,
// one call at a time probes whether it is back.
func TestOutageIsProbedOneAtATime(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, other := newEnvIn(t, mode), newRecorder(t)
			var away atomic.Bool // the relay has noticed, and all earlier calls have ended
			begun, answer, up := make(chan int32, 1<<16), make(chan struct{}), make(chan struct{})
			var calls atomic.Int32
			mail := delivery.HandlerFunc(func(ctx context.Context, _ *delivery.Event) error {
				if away.Load() {
					begun <- calls.Add(1)
					defer calls.Add(-1)
					select {
					case <-answer:
					case <-up:
					case <-ctx.Done():
					}
				}
				select {
				case <-up:
					return nil
				default:
					return delivery.Unavailable(errors.New("connection refused"))
				}
			})
			r := e.relay(func(r *notifyd.Relay) {
				err := errors.Join(r.Handle("mail", notifyd.Destination{Name: "mail", Handler: mail, Lane: delivery.Lane{MaxAttempts: 1, Concurrency: 16, LongestPause: 50 * time.Millisecond}}), r.Handle("log", notifyd.Destination{Name: "log", Handler: other}))
				if err != nil {
					t.Fatal(err)
				}
			}, notifyd.Config{PollInterval: 50 * time.Millisecond})
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'mail', '1' FROM generate_series(1, 1000)`)
			testenv.Await(t, "the outage noticed, with no call under way", func() bool {
				d := destination(r, "mail") // of one moment
				return d.Down && d.Running == 0
			})
			away.Store(true)
			for range 3 {
				if n := testenv.Receive(t, patience, "the beginning of a call", begun); n != 1 {
					t.Fatalf("%d calls at once while the destination is away", n)
				}
				// Claims continue during the probe, and find as many events for the
				// destination as there is room for.
				e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'log', '1' FROM generate_series(1, 50)`)
				e.untilAll("another destination's events delivered", "log", `e.event_type = 'log'`)
				select {
				case n := <-begun:
					t.Fatalf("%d calls at once while the destination is away", n)
				case answer <- struct{}{}:
				}
			}
			if n := testenv.Receive(t, patience, "the beginning of a call", begun); n != 1 {
				t.Fatalf("%d calls at once while the destination is away", n)
			}
			close(up)
			e.untilDone()
			if n := scan[int](e, `SELECT count(*) FROM outbox_deliveries`); n != 0 {
				t.Errorf("%d deliveries left", n)
			}
		})
	}
}

// destination returns the figures of a destination.
func destination(r *running, name string) observe.DestinationStats {
	for _, d := range r.Stats().Destinations {
		if d.Name == name {
			return d
		}
	}
	r.t.Fatalf("there is no destination %s", name)
	return observe.DestinationStats{}
}

func TestDestinationThatIsGoneIsNamed(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnv(t), newRecorder(t)
			e.exec(`INSERT INTO outbox_events (event_type, payload, state) VALUES ('order.created', '1', 'deferred')`)
			e.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state)
				SELECT id, name, event_type, 'retry' FROM outbox_events, unnest('{all,gone,left}'::text[]) AS name`)
			e.become(mode)
			r := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
			h.next()
			if text := r.log.text(); strings.Count(text, "does not have") != 1 || !strings.Contains(text, `destinations="[gone left]"`) {
				t.Errorf("the log does not name them once:\n%s", text)
			}
		})
	}
}
