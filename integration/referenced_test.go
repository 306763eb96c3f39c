package integration

import (
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/testenv"
)

// TestReferencedEvents: a table of the application has a foreign key to outbox_events. The events that it references stay,
// the others are purged, and nothing is held up.
func TestReferencedEvents(t *testing.T) {
	t.Parallel()
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
