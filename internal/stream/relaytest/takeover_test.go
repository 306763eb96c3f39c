package relaytest

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
)

// storedLines creates the rows that a relay may find when it takes over a destination, more than it
// reads at once: many short lines, some long ones, dead letters in front and alone. The names of
// aggregates begin with the expected fate of their later events.
const storedLines = `
WITH line(aggregate, states) AS (
	SELECT 'blocked-' || chr(97 + i % 5) || i, ARRAY['retry', 'parked'] FROM generate_series(1, 6000) AS i
	UNION ALL SELECT 'blocked-long-' || i, ARRAY['retry'] || array_fill('parked'::text, ARRAY[5500]) FROM generate_series(1, 2) AS i
	UNION ALL SELECT 'blocked-z-' || i, ARRAY['dead', 'retry', 'parked'] FROM generate_series(1, 10) AS i
	UNION ALL SELECT prefix || i, states FROM generate_series(1, 100) AS i, (VALUES
		('blocked-c-', ARRAY['retry']), ('free-a-', ARRAY['dead']), ('free-b-', ARRAY['dead', 'parked']), ('free-c-', ARRAY['parked', 'parked'])) AS kind(prefix, states)),
event AS (
	INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
	SELECT 'order.' || state, 'order', aggregate, '{}' FROM line, unnest(states) WITH ORDINALITY AS s(state, n) ORDER BY n
	RETURNING id, event_type, aggregate_id)
INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, available_at, ordering_key)
SELECT id, 'orders', event_type, substr(event_type, 7), (event_type <> 'order.parked')::int, now() + interval '1 day', 'order/' || aggregate_id FROM event`

// TestStreamTakesLinesOver: stored rows hold back later events of their aggregate, or do not,
// however long the lines are and whatever states are in them.
func TestStreamTakesLinesOver(t *testing.T) {
	t.Parallel()
	pool := streamPool(t)
	for _, statement := range []string{
		storedLines,
		`UPDATE outbox_mode SET origin_head = (SELECT max(id) FROM outbox_events)`,
		`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
			SELECT 'order.new', 'order', aggregate_id, '{}' FROM (SELECT DISTINCT aggregate_id FROM outbox_events) AS e ORDER BY aggregate_id`,
	} {
		if _, err := pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	relay, err := notifyd.New(pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	const want = 100*1 + 100*2 + 100*3 // of the three kinds of free ones
	var mu sync.Mutex
	n, last, all := 0, map[string]int64{}, make(chan struct{})
	handler := delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		mu.Lock()
		defer mu.Unlock()
		if strings.HasPrefix(e.AggregateID, "blocked-") || last[e.AggregateID] >= e.ID {
			t.Errorf("%d of %s is delivered after %d", e.ID, e.AggregateID, last[e.AggregateID])
		}
		last[e.AggregateID] = e.ID
		if n++; n == want {
			close(all)
		}
		return nil
	})
	if err := relay.Handle("order.*", notifyd.Destination{Name: "orders", Handler: handler}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	select {
	case <-all:
	case err := <-done:
		t.Fatal(err)
	case <-time.After(time.Minute):
		t.Errorf("%d of %d were delivered", n, want)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	var parked, wrong int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE d.event_type = 'order.new' AND d.state = 'parked'),
			count(*) FILTER (WHERE d.event_type <> 'order.new' AND d.state <> substr(d.event_type, 7) OR d.event_type = 'order.new' AND d.state <> 'parked')
		FROM outbox_deliveries AS d`).Scan(&parked, &wrong); err != nil {
		t.Fatal(err)
	}
	if parked != 6000+2+10+100 || wrong != 0 {
		t.Errorf("%d later events are parked, and %d rows are not as they should be", parked, wrong)
	}
}

// TestStreamTakesOpenOver: events that the previous relay had in memory when it died come before a
// delayed event of the same aggregate that was written later and is already due.
func TestStreamTakesOpenOver(t *testing.T) {
	t.Parallel()
	pool := streamPool(t)
	const aggregates = 50
	for _, statement := range []string{
		`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, available_at)
			SELECT 'order.new', 'order', i % 50, '{}', CASE WHEN i >= 50 THEN now() END FROM generate_series(0, 99) AS i`,
		`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) SELECT id, 'orders', event_type, 'retry' FROM outbox_events WHERE available_at IS NOT NULL`,
		`UPDATE outbox_mode SET origin_head = 100, origin_open = '{[1,51)}'`,
	} {
		if _, err := pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	relay, err := notifyd.New(pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	n, last, all := 0, map[string]int64{}, make(chan struct{})
	handler := delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		mu.Lock()
		defer mu.Unlock()
		if last[e.AggregateID] > e.ID {
			t.Errorf("%d of %s is delivered after %d", e.ID, e.AggregateID, last[e.AggregateID])
		}
		last[e.AggregateID] = e.ID
		if n++; n == 2*aggregates {
			close(all)
		}
		return nil
	})
	if err := relay.Handle("order.*", notifyd.Destination{Name: "orders", Handler: handler}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	select {
	case <-all:
	case err := <-done:
		t.Fatal(err)
	case <-time.After(time.Minute):
		t.Errorf("%d of %d were delivered", n, 2*aggregates)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
