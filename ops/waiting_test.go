package ops_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/ops"
)

// buryLane waits for an hour after a failure.
func buryLane(dead delivery.OnDead) delivery.Lane {
	return delivery.Lane{Backoff: delivery.Backoff{Initial: time.Hour, Max: time.Hour, Multiplier: 1}, OnDead: dead}
}

// buryRelay starts a relay that delivers all events to mail, and dead letters to parking, until the test ends.
func (d *lettersDB) buryRelay(t *testing.T, lane delivery.Lane, mail, parking delivery.HandlerFunc) *notifyd.Relay {
	t.Helper()
	relay, err := notifyd.New(d.pool, notifyd.Config{Schema: letterSchema})
	if err == nil {
		err = errors.Join(
			relay.Handle("*", notifyd.Destination{Name: "mail", Handler: mail, Lane: lane}),
			relay.Add(notifyd.Destination{Name: "parking", Handler: parking}),
		)
	}
	if err != nil {
		t.Fatal(err)
	}
	run(t, relay)
	return relay
}

// arrivals records deliveries.
type arrivals struct {
	mu  sync.Mutex
	all []string
}

func (a *arrivals) add(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, text)
}

func (a *arrivals) list() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.all)
}

// TestBury: a person makes a waiting delivery a dead letter. It is reported, and later events of its aggregate continue, or
// wait if the dead letter blocks.
func TestBury(t *testing.T) {
	t.Parallel()
	for _, then := range []delivery.LaterEvents{delivery.OnDeadContinue, delivery.OnDeadBlock} {
		blocks := then == delivery.OnDeadBlock
		bothModes(t, func(t *testing.T, d *lettersDB) {
			t.Helper()
			stream := strings.Contains(t.Name(), "/stream")
			if blocks && !stream {
				return // a queue has no order
			}
			var mails, reports arrivals
			relay := d.buryRelay(t, buryLane(delivery.OnDead{To: "parking", Then: then}),
				func(_ context.Context, e *delivery.Event) error {
					if e.Type == "bad" {
						return errors.New("451 no such user, perhaps")
					}
					mails.add(e.Type)
					return nil
				},
				func(_ context.Context, e *delivery.Event) error {
					reports.add(e.DeadLetter.Destination + ": " + e.DeadLetter.Error)
					return nil
				})
			d.exec(`INSERT INTO outbox_events (event_type, payload, aggregate_type, aggregate_id) VALUES ('bad', '1', 'order', '7')`)
			d.until(`SELECT EXISTS (SELECT FROM outbox_deliveries WHERE state = 'retry' AND attempts = 1)`)
			d.exec(`INSERT INTO outbox_events (event_type, payload, aggregate_type, aggregate_id) VALUES ('good', '1', 'order', '7')`)
			if stream {
				d.until(`SELECT EXISTS (SELECT FROM outbox_deliveries WHERE event_id = 2 AND state = 'parked')`)
			}

			chosen := ops.WaitingFilter{Events: []int64{1}, Destination: "mail"}
			if r, err := relay.Ops().BuryWaiting(t.Context(), chosen, ops.BulkAction{DryRun: true}); err != nil || r != (ops.BulkResult{Matched: 1}) {
				t.Fatalf("dry run: %+v, %v", r, err)
			}
			r, err := relay.Ops().BuryWaiting(t.Context(), chosen, ops.BulkAction{Actor: "ann", Reason: "no such user"})
			if err != nil || r != (ops.BulkResult{Matched: 1, Done: 1}) {
				t.Fatalf("%+v, %v", r, err)
			}
			d.until(`SELECT NOT EXISTS (SELECT FROM outbox_deliveries WHERE destination = 'parking')`)
			if got, want := reports.list(), []string{"mail: 451 no such user, perhaps"}; !slices.Equal(got, want) {
				t.Errorf("reports %q", got)
			}
			d.expect("audit", `SELECT concat_ws(' ', action, actor, event_id, destination, details->>'reason', details->>'attempts', details->>'error') FROM outbox_audit`,
				"bury ann 1 mail no such user 1 451 no such user, perhaps")
			d.expect("letters", `SELECT concat_ws(' ', event_id, destination, attempts, error_class, length(error_fingerprint)) FROM outbox_deliveries WHERE state = 'dead'`, "1 mail 1 event 12")
			if blocks {
				d.until(`SELECT EXISTS (SELECT FROM outbox_deliveries WHERE event_id = 2 AND state = 'parked')`)
				if got := mails.list(); got != nil {
					t.Errorf("mails %q, although a dead letter blocks", got)
				}
				if _, err := relay.Ops().DiscardDeadLetters(t.Context(), ops.DeadLetterFilter{All: true}, ops.BulkAction{}); err != nil {
					t.Fatal(err)
				}
			}
			d.until(`SELECT NOT EXISTS (SELECT FROM outbox_deliveries WHERE state <> 'dead')`)
			d.exec(`INSERT INTO outbox_events (event_type, payload, aggregate_type, aggregate_id) VALUES ('later', '1', 'order', '7')`)
			if stream {
				d.until(`SELECT bool_and(head >= 3 AND isempty(open)) FROM outbox_positions`)
			} else {
				d.until(`SELECT bool_and(state = 'done') FROM outbox_events`)
			}
			d.until(`SELECT NOT EXISTS (SELECT FROM outbox_deliveries WHERE state <> 'dead')`)
			if got := mails.list(); !slices.Equal(got, []string{"good", "later"}) {
				t.Errorf("mails %q", got)
			}
		})
	}
}

// TestBuryTotal: behind a dead letter that a person has made, the events of a total order continue, or wait if it blocks.
func TestBuryTotal(t *testing.T) {
	t.Parallel()
	for _, then := range []delivery.LaterEvents{delivery.OnDeadContinue, delivery.OnDeadBlock} {
		t.Run(string(then), func(t *testing.T) {
			t.Parallel()
			d := newLetters(t, false)
			d.exec(`UPDATE outbox_mode SET mode = 'stream'`)
			d.exec(`DROP INDEX outbox_events_fresh`)
			var mails, reports arrivals
			lane := buryLane(delivery.OnDead{To: "parking", Then: then})
			lane.Order = delivery.OrderTotal
			relay := d.buryRelay(t, lane,
				func(_ context.Context, e *delivery.Event) error {
					if e.Type == "bad" {
						return errors.New("451 no such user, perhaps")
					}
					mails.add(e.Type)
					return nil
				},
				func(_ context.Context, e *delivery.Event) error {
					reports.add(e.DeadLetter.Destination)
					return nil
				})
			d.exec(`INSERT INTO outbox_events (event_type, payload, aggregate_type, aggregate_id) VALUES ('bad', '1', 'order', '7'), ('good', '1', NULL, NULL), ('other', '1', 'order', '8')`)
			d.until(`SELECT EXISTS (SELECT FROM outbox_deliveries WHERE state = 'retry' AND attempts = 1)`)
			if r, err := relay.Ops().BuryWaiting(t.Context(), ops.WaitingFilter{Destination: "mail"}, ops.BulkAction{}); err != nil || r.Done != 1 {
				t.Fatalf("%+v, %v", r, err)
			}
			d.until(`SELECT NOT EXISTS (SELECT FROM outbox_deliveries WHERE destination = 'parking')`)
			if then == delivery.OnDeadBlock {
				if got := mails.list(); got != nil {
					t.Errorf("mails %q, although a dead letter blocks", got)
				}
				if _, err := relay.Ops().DiscardDeadLetters(t.Context(), ops.DeadLetterFilter{All: true}, ops.BulkAction{}); err != nil {
					t.Fatal(err)
				}
			}
			d.until(`SELECT head >= 3 AND isempty(open) FROM outbox_positions WHERE destination = 'mail'`)
			d.until(`SELECT NOT EXISTS (SELECT FROM outbox_deliveries WHERE state <> 'dead')`)
			if got := mails.list(); !slices.Equal(got, []string{"good", "other"}) {
				t.Errorf("mails %q", got)
			}
			if got := reports.list(); !slices.Equal(got, []string{"mail"}) {
				t.Errorf("reports %q", got)
			}
		})
	}
}

// TestBuryInFlight: in a queue a delivery that is under way is left alone. In a stream its attempt decides: a failed one
// leaves the dead letter, which is reported once, and a successful one delivers the event.
func TestBuryInFlight(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{true, false} {
		bothModes(t, func(t *testing.T, d *lettersDB) {
			t.Helper()
			stream := strings.Contains(t.Name(), "/stream")
			var mails, reports arrivals
			begun, release := make(chan struct{}), make(chan struct{})
			relay := d.buryRelay(t, buryLane(delivery.OnDead{To: "parking"}),
				func(ctx context.Context, e *delivery.Event) error {
					if e.Type == "bad" && e.Attempt == 2 {
						close(begun)
						select {
						case <-release:
						case <-ctx.Done():
							return ctx.Err()
						}
					}
					if e.Type == "bad" && (fails || e.Attempt == 1) {
						return errors.New("451 no such user, perhaps")
					}
					mails.add(e.Type)
					return nil
				},
				func(_ context.Context, e *delivery.Event) error {
					reports.add(e.DeadLetter.Destination)
					return nil
				})
			d.exec(`INSERT INTO outbox_events (event_type, payload, aggregate_type, aggregate_id) VALUES ('bad', '1', 'order', '7')`)
			d.until(`SELECT EXISTS (SELECT FROM outbox_deliveries WHERE state = 'retry' AND attempts = 1)`)
			chosen := ops.WaitingFilter{Destination: "mail"}
			if r, err := relay.Ops().RetryWaiting(t.Context(), chosen, ops.BulkAction{}); err != nil || r.Done != 1 {
				t.Fatalf("%+v, %v", r, err)
			}
			<-begun
			d.exec(`INSERT INTO outbox_events (event_type, payload, aggregate_type, aggregate_id) VALUES ('good', '1', 'order', '7')`)
			r, err := relay.Ops().BuryWaiting(t.Context(), chosen, ops.BulkAction{})
			if err != nil || (r.Done == 1) != stream {
				t.Errorf("%+v, %v", r, err)
			}
			close(release)
			switch {
			case stream && fails:
				d.until(`SELECT head >= 2 AND isempty(open) FROM outbox_positions WHERE destination = 'mail'`)
				d.until(`SELECT string_agg(destination || ' ' || state || ' ' || attempts, ', ') = 'mail dead 1' FROM outbox_deliveries`)
				if got := reports.list(); !slices.Equal(got, []string{"mail"}) {
					t.Errorf("reports %q", got)
				}
			case stream:
				d.until(`SELECT head >= 2 AND isempty(open) FROM outbox_positions WHERE destination = 'mail'`)
				d.until(`SELECT NOT EXISTS (SELECT FROM outbox_deliveries)`)
			case fails:
				d.until(`SELECT string_agg(destination || ' ' || state || ' ' || attempts, ', ') = 'mail retry 2' FROM outbox_deliveries`)
			default:
				d.until(`SELECT NOT EXISTS (SELECT FROM outbox_deliveries)`)
			}
			want := []string{"bad", "good"}
			if fails {
				want = []string{"good"}
			}
			if got := mails.list(); stream && !slices.Equal(got, want) {
				t.Errorf("mails %q, want %q", got, want)
			}
		})
	}
}

// TestWaitingFilter: filters choose deliveries that have failed and wait, and ids also choose delayed events.
func TestWaitingFilter(t *testing.T) {
	t.Parallel()
	d := newLetters(t, false)
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, available_at, attempts, last_error) VALUES
		(1, 'mail', 'a.b', 'retry', now() + interval '1 h', 1, 'no'), (2, 'mail', 'a.c', 'retry', 'infinity', 0, 'down'), (3, 'log', 'a.b', 'retry', now() + interval '1 h', 1, 'no'),
		(4, 'mail', 'a.b', 'retry', now() + interval '1 h', 0, NULL), (5, 'mail', 'a.b', 'parked', now(), 0, NULL), (6, 'mail', 'a.b', 'dead', now(), 1, 'no'),
		(7, '', 'a.b', 'retry', now() + interval '1 h', 0, NULL)`)
	for _, c := range []struct {
		filter ops.WaitingFilter
		want   int64
	}{
		{ops.WaitingFilter{All: true}, 3},
		{ops.WaitingFilter{Destination: "mail"}, 2},
		{ops.WaitingFilter{Destination: "mail", Type: "a.b"}, 1},
		{ops.WaitingFilter{Type: "a.*"}, 3},
		{ops.WaitingFilter{Events: []int64{1, 4, 5, 6, 7}}, 2},
		{ops.WaitingFilter{Deliveries: []ops.DeliveryRef{{EventID: 3, Destination: "log"}, {EventID: 3, Destination: "mail"}}}, 1},
	} {
		if r, err := d.store.RetryWaiting(t.Context(), c.filter, ops.BulkAction{DryRun: true}); err != nil || r != (ops.BulkResult{Matched: c.want}) {
			t.Errorf("%+v: %+v, %v", c.filter, r, err)
		}
	}
	for _, f := range []ops.WaitingFilter{{}, {All: true, Type: "a"}, {Type: "a*b"}, {Events: []int64{}, All: true}} {
		if _, err := d.store.BuryWaiting(t.Context(), f, ops.BulkAction{}); !errors.Is(err, ops.ErrInvalid) {
			t.Errorf("%+v: %v", f, err)
		}
	}
	if r, err := d.store.RetryWaiting(t.Context(), ops.WaitingFilter{All: true}, ops.BulkAction{Actor: "ann", Batch: 1}); err != nil || r.Done != 3 {
		t.Fatalf("%+v, %v", r, err)
	}
	d.expect("due", `SELECT concat_ws(' ', event_id, destination) FROM outbox_deliveries WHERE state = 'retry' AND available_at <= now() ORDER BY event_id`, "1 mail", "2 mail", "3 log")
	d.expect("audit", `SELECT concat_ws(' ', action, actor, event_id, details->>'attempts') FROM outbox_audit ORDER BY id`, "retry ann 1 1", "retry ann 2 0", "retry ann 3 1")
	// A row without a failure has an error as a dead letter.
	if r, err := d.store.BuryWaiting(t.Context(), ops.WaitingFilter{Events: []int64{4}}, ops.BulkAction{}); err != nil || r.Done != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	d.expect("buried", `SELECT concat_ws(' ', state, error_class, last_error) FROM outbox_deliveries WHERE event_id = 4`, "dead event a person gave the delivery up before it had failed")
}
