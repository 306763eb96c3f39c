package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// parking registers destinations that refuse each event, one that receives their dead letters, and one that receives those
// of the receiver.
func parking(t *testing.T, refuse delivery.HandlerFunc, park, last delivery.Handler) func(*notifyd.Relay) {
	t.Helper()
	return func(r *notifyd.Relay) {
		for _, d := range []notifyd.Destination{
			{Name: "mail", Handler: refuse, Lane: delivery.Lane{OnDead: delivery.OnDead{To: "parking"}, MaxAttempts: 2, Backoff: quick()}},
			{Name: "hook", Handler: refuse, Lane: delivery.Lane{OnDead: delivery.OnDead{To: "parking"}, MaxAttempts: 2, Backoff: quick()}},
			{Name: "parking", Handler: park, Lane: delivery.Lane{OnDead: delivery.OnDead{To: "last"}, MaxAttempts: 3, Backoff: quick(), ExpiresAfter: time.Millisecond}},
			{Name: "last", Handler: last},
		} {
			if err := r.Add(d); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Route("order.*", "mail", "hook"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDeadLettersAreReported: an event dies at two destinations, at once or after attempts, in its claim or under a
// lease. The receiver gets one report of each, with its error, and with ids of their own. The event waits for the reports. A
// replay that dies again is reported again, and a dead letter of the receiver goes to the next one.
func TestDeadLettersAreReported(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		for _, how := range []string{"at once", "after attempts", "leased"} {
			t.Run(string(mode)+" "+how, func(t *testing.T) {
				t.Parallel()
				e, park, last := newEnvIn(t, mode), newRecorder(t), newRecorder(t)
				leased := make(chan struct{})
				refuse := func(ctx context.Context, ev *delivery.Event) error {
					if how == "leased" && ev.Replay == 0 {
						select {
						case <-leased:
						case <-ctx.Done():
							return ctx.Err()
						}
					}
					err := fmt.Errorf("no such customer at %s", ev.Destination)
					if how == "after attempts" {
						return err
					}
					return delivery.Permanent(err)
				}
				var full atomic.Bool // the parking refuses for good
				park.answer = func(_ context.Context, ev *delivery.Event) error {
					switch {
					case full.Load():
						return delivery.Permanent(errors.New("the parking is full"))
					case ev.Attempt < 2:
						return errors.New("not yet")
					}
					return nil
				}
				r := e.relay(parking(t, refuse, park, last), notifyd.Config{LockBudget: 5 * time.Millisecond, PollInterval: 50 * time.Millisecond})
				id := e.insert("order.created", `{"customer": 7}`)
				if how == "leased" {
					if mode == outboxsql.ModeQueue {
						e.until("both deliveries leased", `SELECT count(*) = 2 FROM outbox_deliveries WHERE state = 'running'`)
					}
					close(leased)
				}
				attempts := 1
				if how == "after attempts" {
					attempts = 2
				}
				// next returns the second attempt of the next report, and checks the event in it.
				next := func() *delivery.Event {
					t.Helper()
					first, second := park.next(), park.next()
					if first.DedupeID() != second.DedupeID() || second.Attempt != 2 {
						t.Errorf("attempts %s and %s (%d)", first.DedupeID(), second.DedupeID(), second.Attempt)
					}
					if string(second.Payload) != `{"customer": 7}` || second.Type != "order.created" || second.Destination != "parking" || second.DeadLetter == nil {
						t.Fatalf("reported: %+v", second)
					}
					return second
				}
				reports := map[string]*delivery.DeadLetter{}
				for range 2 {
					got := next()
					reports[got.DedupeID()] = got.DeadLetter
				}
				for _, origin := range []string{"mail", "hook"} {
					d := reports[fmt.Sprintf("%d-%s", id, origin)]
					if d == nil || d.Destination != origin || d.Error != "no such customer at "+origin || d.Attempts != attempts || d.Class != "event" || d.Replay != 0 ||
						d.Since.IsZero() || d.At.Before(d.Since) {
						t.Errorf("report of %s: %+v (%d)", origin, d, len(reports))
					}
				}
				e.untilState(id, "done")
				dead := `SELECT string_agg(destination, ' ' ORDER BY destination) FROM outbox_deliveries WHERE state = 'dead'`
				if got := scan[string](e, dead); got != "hook mail" {
					t.Errorf("dead letters at %s", got)
				}

				replay := func(destination string) {
					t.Helper()
					f := ops.DeadLetterFilter{Destination: destination}
					if result, err := r.Ops().ReplayDeadLetters(t.Context(), f, ops.BulkAction{Actor: "test"}); err != nil || result.Done != 1 {
						t.Fatalf("replayed: %+v, %v", result, err)
					}
				}
				replay("mail")
				if got := next(); got.DedupeID() != fmt.Sprintf("%d-mailr1", id) || got.DeadLetter.Replay != 1 {
					t.Errorf("the second death is reported as %s: %+v", got.DedupeID(), got.DeadLetter)
				}
				e.untilState(id, "done")

				full.Store(true)
				replay("hook")
				if got := park.next(); got.DedupeID() != fmt.Sprintf("%d-hookr1", id) {
					t.Errorf("the receiver got %s", got.DedupeID())
				}
				if got := last.next(); got.DedupeID() != fmt.Sprintf("%d-parking", id) || got.DeadLetter.Error != "the parking is full" {
					t.Errorf("the last receiver got %s: %+v", got.DedupeID(), got.DeadLetter)
				}
				e.untilState(id, "done")
				if got := scan[string](e, dead); got != "hook mail parking" {
					t.Errorf("dead letters at %s", got)
				}
			})
		}
	}
}

// TestReportIsAtomic: the session that writes a dead letter is killed between the dead letter and its report. No other
// session ever sees one without the other.
func TestReportIsAtomic(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, park := newEnvIn(t, mode), newRecorder(t)
			e.exec(`CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NEW; END';
				CREATE TRIGGER hold BEFORE INSERT ON outbox_deliveries FOR EACH ROW WHEN (NEW.dead_letters IS NOT NULL) EXECUTE FUNCTION hold()`)
			gate, err := e.pool.Acquire(e.ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer gate.Release()
			if _, err := gate.Exec(e.ctx, `SELECT pg_advisory_lock(4711)`); err != nil {
				t.Fatal(err)
			}
			refuse := func(context.Context, *delivery.Event) error { return delivery.Permanent(errors.New("no")) }
			e.relay(parking(t, refuse, park, newRecorder(t)), notifyd.Config{PollInterval: 50 * time.Millisecond})
			id := e.insert("order.created", `{}`)
			const waiting = ` FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.objid = 4711 AND NOT l.granted`
			for range 3 {
				e.until("a session writes a report", `SELECT EXISTS (SELECT`+waiting+`)`)
				if n := scan[int](e, `SELECT count(*) FROM outbox_deliveries WHERE state = 'dead'`); n != 0 {
					t.Errorf("%d dead letters without a report", n)
				}
				e.until("the session killed", `WITH w AS (SELECT pg_terminate_backend(l.pid)`+waiting+`) SELECT count(*) > 0 FROM w`)
			}
			if _, err := gate.Exec(e.ctx, `SELECT pg_advisory_unlock(4711)`); err != nil {
				t.Fatal(err)
			}
			var ids []string
			for len(ids) < 2 {
				if got := park.next().DedupeID(); !slices.Contains(ids, got) {
					ids = append(ids, got)
				}
			}
			if slices.Sort(ids); fmt.Sprint(ids) != fmt.Sprintf("[%d-hook %[1]d-mail]", id) {
				t.Errorf("reported: %v", ids)
			}
			e.untilState(id, "done")
		})
	}
}

// TestReportsShareARow: the receiver is paused while two events die at two destinations. Each event has one row, from
// which the reports come one after the other. Discarding the first leaves the second, and the events stay until then.
func TestReportsShareARow(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, park := newEnvIn(t, mode), newRecorder(t)
			refuse := func(context.Context, *delivery.Event) error { return delivery.Permanent(errors.New("no")) }
			r := e.relay(parking(t, refuse, park, newRecorder(t)), notifyd.Config{PollInterval: 50 * time.Millisecond, Retention: notifyd.Retention{Keep: notifyd.None}})
			if err := r.Ops().Pause(t.Context(), "parking", ops.Action{Actor: "test"}); err != nil {
				t.Fatal(err)
			}
			first, second := e.insert("order.created", `{}`), e.insert("order.created", `{}`)
			e.until("the reports stored", `SELECT count(*) = 2 AND sum(jsonb_array_length(dead_letters)) = 4 FROM outbox_deliveries WHERE destination = 'parking' AND state = 'retry'`)
			e.exec(`DELETE FROM outbox_deliveries WHERE destination = 'parking' AND event_id = $1`, first)
			if n := scan[int](e, `SELECT jsonb_array_length(dead_letters) FROM outbox_deliveries WHERE destination = 'parking' AND event_id = $1`, first); n != 1 {
				t.Errorf("%d reports left, want 1", n)
			}
			for _, destination := range []string{"mail", "hook"} { // the dead letters alone do not hold the event
				if _, err := r.Ops().DiscardDeadLetters(t.Context(), ops.DeadLetterFilter{Destination: destination}, ops.BulkAction{Actor: "test"}); err != nil {
					t.Fatal(err)
				}
			}
			if n := scan[int](e, `SELECT count(*) FROM outbox_events`); n != 2 {
				t.Errorf("%d events, want 2: their reports wait", n)
			}
			if _, err := r.Ops().Resume(t.Context(), "parking", ops.Action{Actor: "test"}); err != nil {
				t.Fatal(err)
			}
			var ids []string
			for range 3 {
				ids = append(ids, park.next().DedupeID())
			}
			slices.Sort(ids)
			if got := strings.Join(ids, " "); !strings.HasPrefix(got, fmt.Sprintf("%d-", first)) || !strings.HasSuffix(got, fmt.Sprintf(" %d-hook %[1]d-mail", second)) {
				t.Errorf("reported: %s", got)
			}
			e.until("the events deleted", `SELECT NOT EXISTS (SELECT FROM outbox_events) AND NOT EXISTS (SELECT FROM outbox_deliveries)`)
		})
	}
}

// TestReportWakesItsReceiver: a report of a dead letter does not wait for a poll of the relay that has its receiver.
func TestReportWakesItsReceiver(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, park := newEnvIn(t, mode), newRecorder(t)
			refuse := func(context.Context, *delivery.Event) error { return delivery.Permanent(errors.New("no")) }
			for range 2 {
				e.relay(parking(t, refuse, park, newRecorder(t)), notifyd.Config{PollInterval: 10 * patience})
			}
			for range 5 {
				e.insert("order.created", `{}`)
				park.next() // from mail
				park.next() // from hook
			}
		})
	}
}

// TestReportsAreRefused: a receiver that cannot get dead letters ends Run before anything is delivered.
func TestReportsAreRefused(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for want, lanes := range map[string]map[string]delivery.Lane{
		`a.on_dead.to: there is no destination "nobody"`:        {"a": {OnDead: delivery.OnDead{To: "nobody"}}},
		`a.on_dead.to: a route leads to "routed"`:               {"a": {OnDead: delivery.OnDead{To: "routed"}}, "routed": {}},
		`a.on_dead.to: "b" has several shards`:                  {"a": {OnDead: delivery.OnDead{To: "b"}}, "b": {Shards: 2}},
		`b.on_dead.to: dead letters would go round in a circle`: {"a": {OnDead: delivery.OnDead{To: "b"}}, "b": {OnDead: delivery.OnDead{To: "c"}}, "c": {OnDead: delivery.OnDead{To: "b"}}},
	} {
		r, err := notifyd.New(e.pool, notifyd.Config{})
		if err != nil {
			t.Fatal(err)
		}
		for name, lane := range lanes {
			if err := r.Add(notifyd.Destination{Name: name, Handler: newRecorder(t), Lane: lane}); err != nil {
				t.Fatal(err)
			}
			if name == "routed" || name == "a" {
				if err := r.Route(name, name); err != nil {
					t.Fatal(err)
				}
			}
		}
		err = r.Run(t.Context())
		if !errors.Is(err, notifyd.ErrDestination) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
