package integration

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/outbox"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestDeliveredThroughTheNotification(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: never})
			id := e.insert("order.created", `{"total":  12.50}`)
			got := h.next()
			if got.ID != id || got.Type != "order.created" || string(got.Payload) != `{"total":  12.50}` || got.Attempt != 1 || got.Destination != "all" {
				t.Errorf("handler got %+v", got)
			}
			e.untilState(id, "done")
		})
	}
}

func TestDeliveredThroughThePoller(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			e.exec(`DROP TRIGGER outbox_events_notify ON outbox_events`)
			e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
			id := e.insert("order.created", `{}`)
			if got := h.next(); got.ID != id {
				t.Errorf("handler got event %d, want %d", got.ID, id)
			}
			e.untilState(id, "done")
		})
	}
}

func TestDeliveredByPollingAlone(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollingOnly: true})
			id := e.insert("order.created", `{}`)
			h.next()
			e.untilState(id, "done")
			if n := scan[int](e, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name IN ('notifyd/listen', 'notifyd/notify')`); n != 0 {
				t.Errorf("%d connections for a notify trigger that is off", n)
			}
		})
	}
}

func TestInsertedWhileTheRelayIsDown(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			first := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: never})
			if err := first.end(); err != nil {
				t.Fatal(err)
			}
			id := e.insert("order.created", `{}`)
			e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: never})
			if got := h.next(); got.ID != id {
				t.Errorf("handler got event %d, want %d", got.ID, id)
			}
			e.untilState(id, "done")
		})
	}
}

func TestNothingLeavesForARollback(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
			undo := errors.New("undo")
			err := pgx.BeginFunc(e.ctx, e.pool, func(tx pgx.Tx) error {
				if err := outbox.Write(e.ctx, tx, outbox.Event{Type: "order.created", Payload: map[string]int{"id": 1}}); err != nil {
					return err
				}
				return undo
			})
			if !errors.Is(err, undo) {
				t.Fatal(err)
			}
			id := e.insert("order.created", `{}`) // committed later: once it is delivered, the other one will not come
			if got := h.next(); got.ID != id {
				t.Errorf("handler got event %d, want %d only", got.ID, id)
			}
			e.untilDone()
			if len(h.calls) != 0 {
				t.Errorf("handler was called for %d more events", len(h.calls))
			}
		})
	}
}

func TestEverythingAboutAnEventArrives(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
			event := outbox.Event{
				Type: "order.created", AggregateType: "order", AggregateID: "1042",
				Payload: map[string]any{"customer": "Ünal <o'neil@example.com>"},
				Headers: map[string]string{"traceparent": "00-4bf9-00f0-01", "x": `"\`},
			}
			if err := pgx.BeginFunc(e.ctx, e.pool, func(tx pgx.Tx) error { return outbox.Write(e.ctx, tx, event) }); err != nil {
				t.Fatal(err)
			}
			got := h.next()
			if got.AggregateType != "order" || got.AggregateID != "1042" || got.Headers["traceparent"] != "00-4bf9-00f0-01" || got.Headers["x"] != `"\` {
				t.Errorf("handler got %+v", got)
			}
			if want := scan[string](e, `SELECT payload::text FROM outbox_events`); string(got.Payload) != want {
				t.Errorf("payload is %s, want %s", got.Payload, want)
			}
			if created := scan[bool](e, `SELECT created_at = $1 FROM outbox_events`, got.CreatedAt); !created {
				t.Errorf("created_at is %v", got.CreatedAt)
			}
		})
	}
}

func TestOtherSchema(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			const schema = `My "shop"`
			e, h := newEnv(t), newRecorder(t)
			e.migrate(schema, outboxsql.NotifyKeep)
			e.becomeIn(schema, mode)
			e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{Schema: schema, PollInterval: never})
			err := pgx.BeginFunc(e.ctx, e.pool, func(tx pgx.Tx) error {
				return outbox.WriteTo(e.ctx, tx, schema, outbox.Event{Type: "order.created", Payload: 1})
			})
			if err != nil {
				t.Fatal(err)
			}
			h.next()
			done := `SELECT state = 'done' FROM "My ""shop""".outbox_events`
			if mode == outboxsql.ModeStream {
				done = `SELECT p.open = '{}' AND p.head >= e.id FROM "My ""shop""".outbox_positions AS p, "My ""shop""".outbox_events AS e WHERE p.destination = 'all'`
			}
			e.until("event done", done)
		})
	}
}

func TestBatchHandlerAnswersForEachEvent(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e := newEnvIn(t, mode)
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'n', to_json(n) FROM generate_series(1, 500) n`)
			bad := delivery.Permanent(errors.New("seven is not allowed"))
			h := delivery.BatchHandlerFunc(func(_ context.Context, events []*delivery.Event) []error {
				errs := make([]error, len(events))
				for i, event := range events {
					if strings.HasSuffix(string(event.Payload), "7") {
						errs[i] = bad
					}
				}
				return errs
			})
			e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
			e.untilDone()
			if n := scan[int](e, `SELECT count(*) FROM outbox_deliveries WHERE state = 'dead'`); n != 50 {
				t.Errorf("%d dead letters, want 50", n)
			}
		})
	}
}

func TestRetentionZeroDeletesAtOnce(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			h.answer = func(_ context.Context, event *delivery.Event) error {
				switch {
				case event.Type == "bad":
					return delivery.Permanent(errors.New("no"))
				case event.Type == "twice" && event.Attempt == 1:
					return errors.New("once more")
				}
				return nil
			}
			e.relay(handleAll(t, h, delivery.Lane{Backoff: quick()}), notifyd.Config{Retention: notifyd.Retention{Keep: notifyd.None, Batch: 1}})
			e.insert("good", `1`)
			e.insert("twice", `1`)
			e.insert("bad", `1`)
			e.until("delivered events deleted, and the dead letter kept", `SELECT array_agg(event_type) = '{bad}'
				AND (SELECT count(*) = 1 FROM outbox_deliveries WHERE state = 'dead') FROM outbox_events`)
		})
	}
}

func TestLargePayloadsAreClaimedInPieces(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'small', '1' FROM generate_series(1, 300)`)
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'large', to_json(repeat('x', 300000)) FROM generate_series(1, 60)`)
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'huge', to_json(repeat('x', 3000000)) FROM generate_series(1, 5)`)
			r := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{BatchBytes: 1 << 20, PollInterval: never})
			e.untilDone()
			h.each(365, r)
		})
	}
}
