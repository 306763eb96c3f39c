package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestReferencedEvents: a table of the application has a foreign key to outbox_events. The events that it references stay,
// the others are purged, and nothing is held up.
func TestReferencedEvents(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const events = 500
	for _, mode := range bothModes() {
		for name, keep := range map[string]time.Duration{"keep": time.Nanosecond, "keep nothing": notifyd.None} {
			t.Run(string(mode)+" "+name, func(t *testing.T) {
				t.Parallel()
				e, h := newEnvIn(t, mode), newRecorder(t)
				e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, $1)`, events)
				e.exec(`CREATE TABLE orders (event bigint REFERENCES outbox_events)`)
				e.exec(`INSERT INTO orders VALUES (3), (250), (251), (500)`)
				r := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{Retention: notifyd.Retention{Keep: keep, Batch: 100}})
				e.until("the others are purged", `SELECT count(*) = 4 FROM outbox_events`)
				id := e.insert("a", "1")
				e.untilDone()
				if n := h.times(id); n != 1 {
					t.Errorf("a later one is delivered %d times", n)
				}
				e.exec(`DELETE FROM outbox_events WHERE id = $1`, id)
				if n := scan[int](e, `SELECT count(*) FROM outbox_events AS e JOIN orders AS o ON o.event = e.id`); n != 4 {
					t.Errorf("%d of the referenced events are left", n)
				}
				if copies := h.all(e, 4); copies > 0 {
					t.Errorf("%d copies", copies)
				}
				if keep > 0 || mode == "stream" {
					testenv.Await(t, "the warning", func() bool { return r.count("delivered events cannot be deleted") > 0 })
				}
				if n := r.count("purge failed") + r.count("database refuses a statement"); n > 0 {
					t.Errorf("%d complaints", n)
				}
			})
		}
	}
}

// TestReferencedByOpenTransaction: a transaction that stays open inserts rows with a foreign key to events. The events are
// delivered meanwhile, also after a retry, and the purge goes on.
func TestReferencedByOpenTransaction(t *testing.T) {
	t.Parallel()
	const events = 30
	for _, mode := range bothModes() {
		for name, keep := range map[string]time.Duration{"keep": time.Hour, "purge": time.Nanosecond} {
			t.Run(string(mode)+" "+name, func(t *testing.T) {
				t.Parallel()
				if name != "purge" {
					testenv.Long(t)
				}
				e, h := newEnvIn(t, mode), newRecorder(t)
				h.answer = func(_ context.Context, event *delivery.Event) error {
					if event.ID%2 == 0 && event.Attempt == 1 {
						return errors.New("not yet")
					}
					return nil
				}
				e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, $1)`, events)
				e.exec(`CREATE TABLE orders (event bigint REFERENCES outbox_events)`)
				tx, err := e.pool.Begin(e.ctx)
				if err != nil {
					t.Fatal(err)
				}
				defer tx.Rollback(context.WithoutCancel(e.ctx)) //nolint:errcheck // the connection ends
				if _, err := tx.Exec(e.ctx, `INSERT INTO orders SELECT id FROM outbox_events WHERE id <= 10`); err != nil {
					t.Fatal(err)
				}

				r := e.relay(handleAll(t, h, delivery.Lane{Backoff: quick()}), notifyd.Config{Retention: notifyd.Retention{Keep: keep}})
				e.untilDone()
				for id := range int64(events) {
					if n := h.times(id + 1); n != 1+int(id%2) {
						t.Errorf("event %d was delivered %d times", id+1, n)
					}
				}
				if keep < time.Hour {
					e.until("the others are purged", `SELECT count(*) = 10 FROM outbox_events`)
				}
				if n := r.count("purge failed") + r.count("database refuses a statement"); n > 0 {
					t.Errorf("%d complaints", n)
				}
			})
		}
	}
}
