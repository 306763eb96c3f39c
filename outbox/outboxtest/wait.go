package outboxtest

import (
	"strings"
	"testing"
	"time"
)

// pause lies between two looks of [Delivered].
const pause = 10 * time.Millisecond

// Delivered waits until a relay has delivered all events that are visible now, to all of their destinations, in a queue
// or a stream. Delivered reads through a pool or a connection, and refuses a transaction: relays do not see the events
// of an open transaction. When within has passed, Delivered ends the test and names the waiting events. It ends the
// test at once if a delivery has become a dead letter. An event type without a route waits.
func Delivered(tb testing.TB, s Source, within time.Duration) {
	tb.Helper()
	if s.inTx {
		tb.Fatalf("outboxtest: Delivered reads through a transaction, whose events no relay sees: commit, and read " +
			"through a pool or a connection")
	}

	last := s.last(tb)
	end := time.NewTimer(within)
	defer end.Stop()
	ticker := time.NewTicker(pause)
	defer ticker.Stop()

	for {
		waiting, dead, err := s.undelivered(tb.Context(), last)
		switch {
		case err != nil:
			tb.Fatalf("outboxtest: look for undelivered events: %v", err)
		case len(dead) > 0:
			tb.Fatalf("outboxtest: deliveries are dead letters:\n  %s", strings.Join(dead, "\n  "))
		case len(waiting) == 0:
			return
		}

		select {
		case <-end.C:
			tb.Fatalf("outboxtest: not delivered after %v:\n  %s", within, strings.Join(waiting, "\n  "))
		case <-ticker.C:
		}
	}
}

const (
	// In a queue the event's row shows that the event is done. The destinations of an event with
	// stored deliveries come from these.
	sqlQueue = `(SELECT e.id, e.event_type, '' AS destination, 'not tried yet' AS state, '' AS fault FROM {schema}.outbox_events AS e
		WHERE e.id > $1 AND e.id <= {last} AND e.state = 'fresh' ORDER BY e.id LIMIT 20)`

	// In a stream each destination has to pass it. Without any position no relay has been there.
	sqlStream = `(SELECT e.id, e.event_type, p.destination,
				CASE p.destination WHEN '' THEN 'not routed yet' ELSE 'not delivered yet' END AS state, '' AS fault
			FROM {schema}.outbox_events AS e JOIN {schema}.outbox_positions AS p ON e.id > p.head OR e.id <@ p.open
			WHERE e.id > $1 AND e.id <= {last} ORDER BY e.id LIMIT 20)
		UNION ALL (SELECT e.id, e.event_type, '', 'no relay has delivered anything from this table yet', ''
			FROM {schema}.outbox_events AS e
			WHERE e.id > $1 AND e.id <= {last}
				AND NOT EXISTS (SELECT FROM {schema}.outbox_positions WHERE destination <> '') ORDER BY e.id LIMIT 20)`

	// Dead letters first: they end the wait.
	sqlRows = ` UNION ALL (SELECT d.event_id, d.event_type, d.destination, d.state, coalesce(d.last_error, '')
		FROM {schema}.outbox_deliveries AS d
		WHERE d.event_id > $1 AND d.event_id <= {last} ORDER BY d.state <> 'dead', d.event_id LIMIT 20)`
)
