package ops_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const patience = 2 * time.Minute

// bothModes runs f in a queue and in a stream without positions.
func bothModes(t *testing.T, f func(t *testing.T, d *lettersDB)) {
	t.Helper()
	for _, mode := range []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			d := newLetters(t, false)
			if mode == outboxsql.ModeStream {
				d.exec(`UPDATE outbox_mode SET mode = 'stream'`)
				d.exec(`DROP INDEX outbox_events_fresh`)
			}
			f(t, d)
		})
	}
}

// relay starts a relay that delivers all events to mail, until the test ends.
func (d *lettersDB) relay(t *testing.T, deliver func(e *delivery.Event) error, lane delivery.Lane) {
	t.Helper()
	relay, err := notifyd.New(d.pool, notifyd.Config{Schema: letterSchema})
	if err == nil {
		err = relay.Handle("*", notifyd.Destination{Name: "mail", Handler: delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error { return deliver(e) }), Lane: lane})
	}
	if err != nil {
		t.Fatal(err)
	}
	run(t, relay)
}

// until waits for a query to be true.
func (d *lettersDB) until(sql string) {
	d.Helper()
	deadline := time.Now().Add(patience)
	for ok := false; !ok; {
		if err := d.pool.QueryRow(d.Context(), sql).Scan(&ok); err != nil {
			d.Fatal(err)
		}
		if time.Now().After(deadline) {
			d.Fatalf("never true: %s: %q", sql, d.list("SELECT d::text FROM outbox_deliveries d"))
		}
	}
}

// TestWatch: of six replayed letters four are delivered, and two die again of two errors.
func TestWatch(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, d *lettersDB) {
		t.Helper()
		d.relay(t, func(e *delivery.Event) error {
			switch {
			case e.Replay == 0:
				return delivery.Permanent(errors.New("no such user"))
			case e.ID == 2:
				return delivery.Permanent(errors.New("still no such user"))
			case e.ID == 5:
				return delivery.Permanent(errors.New("mailbox is full"))
			}
			return nil
		}, delivery.Lane{})
		d.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 6)`)
		d.until(`SELECT count(*) = 6 FROM outbox_deliveries WHERE state = 'dead'`)
		w := d.store.Watch()
		r, err := d.store.ReplayDeadLetters(t.Context(), ops.DeadLetterFilter{All: true}, ops.BulkAction{Acted: w.Add})
		if err != nil || r.Done != 6 {
			t.Fatalf("%+v, %v", r, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		b, err := w.Await(ctx)
		if err != nil || b.Delivered != 4 || b.Dead != 2 || b.Waiting != 0 || b.Discarded != 0 || len(b.Groups) != 2 {
			t.Fatalf("%+v, %v", b, err)
		}
		for _, g := range b.Groups {
			if g.Count != 1 || g.Destination != "mail" || g.Type != "a" || g.Example.Replays != 1 || g.Newest.IsZero() ||
				g.Example.EventID != map[string]int64{"still no such user": 2, "mailbox is full": 5}[g.Example.Error] {
				t.Errorf("group %+v", g)
			}
		}
	})
}

// TestWatchWithoutRelay: what nobody delivers waits; what a person discards meanwhile is counted as that.
func TestWatchWithoutRelay(t *testing.T) {
	t.Parallel()
	d := newLetters(t, false)
	d.bury(1, 2500, "mail", "a", "bad")
	d.bury(1, 1, "hook", "a", "bad")
	w := d.store.Watch()
	if _, err := d.store.ReplayDeadLetters(t.Context(), ops.DeadLetterFilter{All: true}, ops.BulkAction{Acted: w.Add}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if b, err := w.Await(ctx); !errors.Is(err, context.Canceled) || b.Waiting != 2501 {
		t.Errorf("%+v, %v", b, err)
	}
	d.exec(`UPDATE outbox_deliveries SET state = 'dead' WHERE event_id <= 3 AND destination = 'mail'`)
	if r, err := d.store.DiscardDeadLetters(t.Context(), ops.DeadLetterFilter{Events: []int64{1}}, ops.BulkAction{}); err != nil || r.Done != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	d.exec(`DELETE FROM outbox_deliveries WHERE event_id > 2400`)
	b, err := w.Update(t.Context())
	if err != nil || b.Discarded != 1 || b.Dead != 2 || b.Delivered != 0 || b.Gone != 100 || b.Waiting != 2398 || len(b.Groups) != 1 || b.Groups[0].Count != 2 {
		t.Errorf("%+v, %v", b, err)
	}
}

// TestRetryNow: a delivery that waits for an hour is tried at once, and its attempts count on.
func TestRetryNow(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, d *lettersDB) {
		t.Helper()
		tried := make(chan int, 10)
		attempt := 0
		d.relay(t, func(*delivery.Event) error {
			attempt++
			tried <- attempt
			if attempt == 1 {
				return errors.New("not yet")
			}
			return nil
		}, delivery.Lane{Backoff: delivery.Backoff{Initial: time.Hour, Max: time.Hour, Multiplier: 1}, Concurrency: 1})
		d.exec(`INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1')`)
		<-tried
		d.until(`SELECT EXISTS (SELECT FROM outbox_deliveries WHERE state = 'retry' AND attempts = 1)`)
		ref := ops.DeliveryRef{EventID: 1, Destination: "mail"}
		if err := d.store.RetryNow(t.Context(), ref, ops.Action{DryRun: true}); err != nil {
			t.Fatal(err)
		}
		d.expect("audit after a dry run", `SELECT action FROM outbox_audit`)
		if err := d.store.RetryNow(t.Context(), ref, ops.Action{Actor: "ann", Reason: "it is back"}); err != nil {
			t.Fatal(err)
		}
		select {
		case n := <-tried:
			if n != 2 {
				t.Errorf("attempt %d", n)
			}
		case <-time.After(patience):
			t.Fatal("it is not tried")
		}
		d.until(`SELECT NOT EXISTS (SELECT FROM outbox_deliveries)`)
		d.expect("audit", `SELECT concat_ws(' ', action, actor, event_id, destination, details->>'reason', details->>'attempts') FROM outbox_audit`, "retry ann 1 mail it is back 1")
		if err := d.store.RetryNow(t.Context(), ref, ops.Action{}); !errors.Is(err, ops.ErrNotWaiting) {
			t.Errorf("of a delivered one: %v", err)
		}
	})
}

// TestRetryNowRefuses what does not wait for a next try.
func TestRetryNowRefuses(t *testing.T) {
	t.Parallel()
	d := newLetters(t, false)
	d.bury(1, 1, "mail", "a", "bad")
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, available_at) VALUES (2, 'mail', 'a', 'parked', now()), (3, 'mail', 'a', 'retry', 'infinity'), (4, '', 'a', 'unrouted', now())`)
	tx, err := d.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox_deliveries WHERE event_id = 3 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	for ref, want := range map[ops.DeliveryRef]error{
		{EventID: 1, Destination: "mail"}: ops.ErrNotWaiting, {EventID: 2, Destination: "mail"}: ops.ErrNotWaiting,
		{EventID: 3, Destination: "mail"}: ops.ErrNotWaiting, {EventID: 4, Destination: ""}: ops.ErrInvalid,
	} {
		if err := d.store.RetryNow(t.Context(), ref, ops.Action{}); !errors.Is(err, want) {
			t.Errorf("%+v: %v", ref, err)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.store.RetryNow(t.Context(), ops.DeliveryRef{EventID: 3, Destination: "mail"}, ops.Action{}); err != nil {
		t.Error(err)
	}
	d.expect("due", fmt.Sprintf(`SELECT (available_at <= now())::text FROM outbox_deliveries WHERE event_id = %d`, 3), "true")
}

// run runs a relay until the end of the test.
func run(t *testing.T, relay *notifyd.Relay) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestReplayKeepsOrder: replayed dead letters of an aggregate are delivered in the order of their ids, one behind the
// other: in whatever order they were replayed, read or became due, and although the first one fails again.
func TestReplayKeepsOrder(t *testing.T) {
	t.Parallel()
	const letters = 5
	for _, then := range []delivery.LaterEvents{delivery.OnDeadContinue, delivery.OnDeadBlock} {
		t.Run(string(then), func(t *testing.T) {
			t.Parallel()
			d := newStream(t, false, false)
			d.letters(1, letters, "mail")
			d.exec(`SELECT setval('outbox_events_id_seq', 1000)`) // the position is there
			d.exec(`UPDATE outbox_events SET aggregate_id = 1`)
			d.exec(`UPDATE outbox_deliveries SET ordering_key = 'order/1'`)

			var mu sync.Mutex
			var calls []int64
			hour := delivery.Backoff{Initial: time.Hour, Max: time.Hour, Multiplier: 1}
			d.relay(t, func(e *delivery.Event) error {
				mu.Lock()
				defer mu.Unlock()
				calls = append(calls, e.ID)
				if e.ID == 2 && e.Attempt == 1 {
					return errors.New("not yet")
				}
				return nil
			}, delivery.Lane{Backoff: hour, OnDead: delivery.OnDead{Then: then}})

			replay := func(ids ...int64) {
				t.Helper()
				r, err := d.store.ReplayDeadLetters(t.Context(), ops.DeadLetterFilter{Events: ids}, ops.BulkAction{})
				if err != nil || r.Done != int64(len(ids)) {
					t.Fatalf("%+v, %v", r, err)
				}
			}
			replay(2)
			d.until(`SELECT attempts = 1 FROM outbox_deliveries WHERE event_id = 2`)

			// Event 5 is replayed before event 3, and event 1, which blocks, stays dead.
			replay(5)
			d.until(`SELECT coalesce((SELECT state = 'parked' FROM outbox_deliveries WHERE event_id = 5), true)`)
			replay(3, 4)
			d.until(`SELECT NOT EXISTS (SELECT FROM outbox_deliveries WHERE event_id > 2 AND state = 'retry')`)
			if err := d.store.RetryNow(t.Context(), ops.DeliveryRef{EventID: 2, Destination: "mail"}, ops.Action{}); err != nil {
				t.Fatal(err)
			}
			d.until(`SELECT count(*) = 1 FROM outbox_deliveries`)

			mu.Lock()
			defer mu.Unlock()
			if want := []int64{2, 2, 3, 4, 5}; !slices.Equal(calls, want) {
				t.Errorf("called with %v, want %v", calls, want)
			}
		})
	}
}
