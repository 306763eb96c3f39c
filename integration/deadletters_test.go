package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/nats"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/ops"
)

// fixable is an answer that is permanent until its cause is fixed.
type fixable struct{ fixed atomic.Bool }

func (m *fixable) answer(context.Context, *delivery.Event) error {
	if m.fixed.Load() {
		return nil
	}
	return delivery.Permanent(errors.New("no such customer"))
}

// TestReplay: a dead letter is listed, replayed, dies again, is replayed after
// its cause was fixed, and delivered. Nothing polls: the replay wakes the relay.
func TestReplay(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		for name, keep := range map[string]time.Duration{"kept": time.Hour, "deleted": notifyd.None} {
			t.Run(string(mode)+" "+name, func(t *testing.T) {
				t.Parallel()
				e, h, cause := newEnvIn(t, mode), newRecorder(t), &fixable{}
				h.answer = cause.answer
				r := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: never, Retention: notifyd.Retention{Keep: keep, Batch: 1000}})
				id := e.insert("order.created", `{"customer": 7}`)
				isDead := func() {
					t.Helper()
					e.until("the delivery dead", `SELECT state = 'dead' FROM outbox_deliveries WHERE event_id = $1`, id)
					e.untilState(id, "done")
				}
				if got := h.next(); got.Replay != 0 || got.DedupeID() != fmt.Sprint(id) {
					t.Errorf("at first: replay %d, id %s", got.Replay, got.DedupeID())
				}
				isDead()

				dlq := r.Ops()
				page, err := dlq.DeadLetters(t.Context(), ops.DeadLetterFilter{Type: "order.*"}, ops.DeliveryRef{}, 10)
				if err != nil || len(page.Letters) != 1 || page.Letters[0].EventID != id || page.Letters[0].Error != "no such customer" || page.Letters[0].Attempts != 1 {
					t.Fatalf("listed: %+v, %v", page, err)
				}
				replay := func(want int) {
					t.Helper()
					f := ops.DeadLetterFilter{Fingerprint: page.Letters[0].Fingerprint}
					if result, err := dlq.ReplayDeadLetters(t.Context(), f, ops.BulkAction{Actor: "test"}); err != nil || result.Done != 1 {
						t.Fatalf("replayed: %+v, %v", result, err)
					}
					if got := h.next(); got.ID != id || got.Attempt != 1 || got.Replay != want || got.DedupeID() != fmt.Sprintf("%dr%d", id, want) ||
						string(got.Payload) != `{"customer": 7}` {
						t.Errorf("delivered again: attempt %d, replay %d, id %s", got.Attempt, got.Replay, got.DedupeID())
					}
				}
				replay(1)
				isDead()
				cause.fixed.Store(true)
				replay(2)
				if keep > 0 {
					e.untilState(id, "done")
				} else {
					e.until("the event gone", `SELECT NOT EXISTS (SELECT FROM outbox_events)`)
				}
				if n := scan[int](e, `SELECT count(*) FROM outbox_deliveries`); n != 0 {
					t.Errorf("%d deliveries left", n)
				}
				if n := scan[int](e, `SELECT count(*) FROM outbox_audit WHERE action = 'replay' AND actor = 'test' AND event_id = $1`, id); n != 2 {
					t.Errorf("%d entries in the audit", n)
				}
			})
		}
	}
}

// TestReplayPassesDeduplication: the stream has the message already, because the
// destination failed after it had accepted it. A further attempt would be
// dropped; a replay is not.
func TestReplayPassesDeduplication(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			place := testenv.NATS(t)
			nc, err := natsgo.Connect(place.URL, natsgo.Timeout(patience))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nc.Close)
			js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(patience))
			if err != nil {
				t.Fatal(err)
			}
			stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: place.Name, Subjects: []string{place.Name}, Duplicates: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			inner, err := nats.New(nats.Config{Servers: []string{place.URL}, Subject: place.Name})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := io.Closer(inner).Close(); err != nil {
					t.Error(err)
				}
			})
			h := newRecorder(t)
			h.answer = func(ctx context.Context, event *delivery.Event) error {
				if err := inner.Deliver(ctx, event); err != nil {
					return err
				}
				if event.Replay == 0 {
					return errors.New("failed after it was delivered")
				}
				return nil
			}
			e := newEnvIn(t, mode)
			r := e.relay(handleAll(t, h, delivery.Lane{Backoff: quick(), MaxAttempts: 3}), notifyd.Config{})
			id := e.insert("order.created", `{}`)
			e.until("the delivery dead", `SELECT state = 'dead' FROM outbox_deliveries`)
			messages := func() uint64 {
				t.Helper()
				info, err := stream.Info(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return info.State.Msgs
			}
			if n := messages(); n != 1 {
				t.Fatalf("%d messages of 3 attempts, want one: the others are duplicates", n)
			}
			if result, err := r.Ops().ReplayDeadLetters(t.Context(), ops.DeadLetterFilter{Events: []int64{id}}, ops.BulkAction{}); err != nil || result.Done != 1 {
				t.Fatalf("replayed: %+v, %v", result, err)
			}
			e.until("the delivery done", `SELECT NOT EXISTS (SELECT FROM outbox_deliveries)`)
			if n := messages(); n != 2 {
				t.Errorf("%d messages after the replay, want 2", n)
			}
		})
	}
}

// TestReplayBesideClaims: two relays claim, with slow handlers so that there are
// leases, while two operators replay dead letters and a third discards them, and
// the other destination of the same events continues. In the end nothing is left,
// each letter had one fate, and no event is stuck.
func TestReplayBesideClaims(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			const letters, fresh = 1500, 500
			var mu sync.Mutex
			replayed, first := map[int64]int{}, map[int64]int{}
			handler := delivery.HandlerFunc(func(_ context.Context, event *delivery.Event) error {
				mu.Lock()
				defer mu.Unlock()
				if event.Replay > 0 {
					replayed[event.ID]++
				} else {
					first[event.ID]++
				}
				return nil
			})
			slow := delivery.HandlerFunc(func(ctx context.Context, event *delivery.Event) error {
				timer := time.NewTimer(2 * time.Millisecond)
				defer timer.Stop()
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-timer.C:
				}
				if event.Attempt == 1 && event.ID%3 == 0 {
					return errors.New("not yet")
				}
				return nil
			})
			register := func(r *notifyd.Relay) {
				err := errors.Join(r.Add(notifyd.Destination{Name: "fast", Handler: handler}), r.Add(notifyd.Destination{Name: "slow", Handler: slow, Lane: delivery.Lane{Backoff: quick()}}), r.Route("a", "fast", "slow"))
				if err != nil {
					t.Fatal(err)
				}
			}
			// Each event has a dead letter of one destination, and a delivery that is due of the other.
			e.exec(`INSERT INTO outbox_events (id, event_type, payload, state) SELECT i, 'a', '{}', 'deferred' FROM generate_series(1, $1::int) i`, letters)
			e.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts) SELECT i, d.name, 'a', d.state, d.attempts
				FROM generate_series(1, $1::int) i, (VALUES ('fast', 'dead', 3), ('slow', 'retry', 0)) AS d(name, state, attempts)`, letters)
			e.exec(`SELECT setval(pg_get_serial_sequence('outbox_events', 'id'), $1)`, letters)
			e.become(mode)
			relay := e.relay(register, notifyd.Config{Retention: notifyd.Retention{Keep: notifyd.None, Batch: 1000}})
			e.relay(register, notifyd.Config{Retention: notifyd.Retention{Keep: notifyd.None, Batch: 1000}})

			dlq := relay.Ops()
			var wg sync.WaitGroup
			results, errs := make([]ops.BulkResult, 3), make([]error, 3)
			for i, do := range []func(context.Context, ops.DeadLetterFilter, ops.BulkAction) (ops.BulkResult, error){dlq.ReplayDeadLetters, dlq.ReplayDeadLetters, dlq.DiscardDeadLetters} {
				wg.Go(func() {
					results[i], errs[i] = do(t.Context(), ops.DeadLetterFilter{Destination: "fast"}, ops.BulkAction{Batch: 7 + i})
				})
			}
			for range fresh {
				e.insert("a", `{}`)
			}
			wg.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			e.until("everything gone", `SELECT NOT EXISTS (SELECT FROM outbox_events) AND NOT EXISTS (SELECT FROM outbox_deliveries)`)
			if n := results[0].Done + results[1].Done + results[2].Done; n != letters {
				t.Errorf("%d letters were handled in total, want %d: %+v", n, letters, results)
			}
			mu.Lock()
			defer mu.Unlock()
			if n := int64(len(replayed)); n != results[0].Done+results[1].Done {
				t.Errorf("%d replayed letters were delivered, of %+v", n, results)
			}
			if len(first) != fresh {
				t.Errorf("%d fresh events were delivered, want %d", len(first), fresh)
			}
		})
	}
}
