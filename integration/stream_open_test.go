package integration

import (
	"slices"
	"testing"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestStoredBehindWhatWasInMemory: when a relay ended, it had the first events of
// an aggregate in memory and the rest stored, because there were too many. The
// relay that takes over delivers those from memory first.
func TestStoredBehindWhatWasInMemory(t *testing.T) {
	t.Parallel()
	const events, inMemory = 40, 25
	e, h := newEnvIn(t, outboxsql.ModeStream), newRecorder(t)
	e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) SELECT 'a', 'order', '1', '1' FROM generate_series(1, $1::int)`, events)
	e.exec(`INSERT INTO outbox_positions (destination, head, open, owner) VALUES ('all', $1, int8multirange(int8range(1, $2)), 7)`, events, inMemory+1)
	e.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key)
		SELECT id, 'all', event_type, 'parked', 'order/1' FROM outbox_events WHERE id > $1`, inMemory)
	e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{Batch: 4})
	e.untilDone()
	var got []int64
	for range events {
		got = append(got, h.next().ID)
	}
	if !slices.IsSorted(got) || len(h.calls) > 0 {
		t.Errorf("the aggregate got %v, and %d more", got, len(h.calls))
	}
}
