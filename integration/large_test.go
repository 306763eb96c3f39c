package integration

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
)

// TestLargeEvent: an event above the limit is a dead letter whose reason has its size and the limit,
// fresh, delayed or replayed; the events around it are delivered. With a higher limit a replay
// delivers it.
func TestLargeEvent(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			const aggregate = `(event_type, aggregate_type, aggregate_id, payload, available_at) VALUES ('order.created', 'order', '1', `
			first := scan[int64](e, `INSERT INTO outbox_events `+aggregate+`'"first"', NULL) RETURNING id`)
			large := scan[int64](e, `INSERT INTO outbox_events `+aggregate+`to_json(repeat('x', 2000000)), NULL) RETURNING id`)
			late := scan[int64](e, `INSERT INTO outbox_events `+aggregate+`to_json(repeat('x', 2000000)), now() + interval '50 ms') RETURNING id`)
			last := scan[int64](e, `INSERT INTO outbox_events `+aggregate+`'"last"', NULL) RETURNING id`)
			r := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{MaxEventBytes: 1_000_000})
			got := map[int64]bool{h.next().ID: true, h.next().ID: true}
			if !got[first] || !got[last] {
				t.Errorf("delivered are %v, want %d and %d", got, first, last)
			}
			const dead = `SELECT count(*) = 2 FROM outbox_deliveries WHERE event_id = ANY($1) AND state = 'dead' AND error_class = 'event' AND attempts = 1 AND replays = $2`
			both := []int64{large, late}
			e.until("both are dead letters", dead, both, 0)
			reason := scan[string](e, `SELECT last_error FROM outbox_deliveries WHERE event_id = $1`, large)
			if !strings.Contains(reason, "2000002 bytes") || !strings.Contains(reason, "max_event_bytes is 1000000") {
				t.Errorf("the reason is %q", reason)
			}
			const replay = `UPDATE outbox_deliveries SET state = 'retry', attempts = 0, replays = replays + 1, available_at = now() WHERE event_id = ANY($1)`
			e.exec(replay, both)
			e.until("both are dead letters again", dead, both, 1)
			if err := r.end(); err != nil {
				t.Fatal(err)
			}
			e.exec(replay, both)
			e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{MaxEventBytes: 2_000_100})
			one, other := h.next(), h.next()
			if min(one.ID, other.ID) != large || max(one.ID, other.ID) != late || len(one.Payload) != 2_000_002 {
				t.Errorf("delivered are %d and %d, want %v", one.ID, other.ID, both)
			}
		})
	}
}
