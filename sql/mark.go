package outboxsql

import (
	"context"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"
)

// event has the columns that decide how an event is marked when a stream becomes a queue.
type event struct {
	id        int64
	eventType string
}

// stored lists the deliveries of one event in outbox_deliveries.
type stored struct {
	destinations []string
	open         bool // one of them is not dead
}

// marks are the marks of a batch of events.
type marks struct {
	done, deferred []int64
	// A delivery for each event and destination.
	events       []int64
	destinations []string
}

// markAll marks the events up to the highest head.
func (m *modeChange) markAll(ctx context.Context, r *readers) error {
	var done int64
	for after, n := int64(math.MinInt64), modeBatch; n == modeBatch; {
		err := m.step(ctx, func(tx pgx.Tx) (err error) {
			after, n, err = m.markSome(ctx, tx, r, after)
			return err
		})
		if err != nil {
			return err
		}

		done += int64(n)
		m.count("%d events read", done)
	}

	return nil
}

// markSome marks the first modeBatch events after an id. It returns the last of them, and their
// number.
func (m *modeChange) markSome(ctx context.Context, tx pgx.Tx, r *readers, after int64) (last int64, n int, err error) {
	rows, err := tx.Query(ctx, `SELECT id, event_type, state = 'fresh' FROM outbox_events WHERE id > $1 AND id <= $2
		ORDER BY id LIMIT $3`, after, r.head(), modeBatch)
	if err != nil {
		return after, 0, err
	}

	var events []event
	var e event
	var fresh bool
	last = after
	_, err = pgx.ForEachRow(rows, []any{&e.id, &e.eventType, &fresh}, func() error {
		if n++; fresh {
			events = append(events, e)
		}
		last = e.id
		return nil
	})
	if err != nil || len(events) == 0 {
		return last, n, err
	}

	deliveries, err := storedBetween(ctx, tx, after, last)
	if err != nil {
		return last, n, err
	}

	return last, n, m.decide(r, events, deliveries).write(ctx, tx, events[0].id, last)
}

// storedBetween returns the deliveries of events, and locks them: a concurrent replay or discard of
// one of them checks its event afterwards.
func storedBetween(ctx context.Context, tx pgx.Tx, after, upto int64) (map[int64]stored, error) {
	rows, err := tx.Query(ctx, `SELECT event_id, destination, state <> 'dead' FROM outbox_deliveries WHERE event_id > $1 AND event_id <= $2
		ORDER BY event_id, destination FOR UPDATE`, after, upto)
	if err != nil {
		return nil, err
	}

	all := make(map[int64]stored)
	var id int64
	var destination string
	var open bool
	_, err = pgx.ForEachRow(rows, []any{&id, &destination, &open}, func() error {
		s := all[id]
		s.destinations = append(s.destinations, destination)
		s.open = s.open || open
		all[id] = s
		return nil
	})

	return all, err
}

// decide returns the marks of events that are fresh.
func (m *modeChange) decide(r *readers, events []event, deliveries map[int64]stored) *marks {
	var to marks
	routes := make(map[string][]string)
	for _, e := range events {
		names, ok := routes[e.eventType]
		if !ok {
			names = m.route(r, e.eventType)
			routes[e.eventType] = names
		}

		have := deliveries[e.id]
		missing := r.missing(names, e.id)
		former := r.missing(r.formerly(names, e), e.id)
		switch {
		case len(former) > 0: // the queue would ask the current routes
			missing = append(slices.DeleteFunc(missing, func(name string) bool { return name == "" }), former...)
		case len(missing) == len(names) && have.destinations == nil:
			continue // no destination has received it
		case slices.Contains(have.destinations, ""):
			missing = nil // the undecided row stands for all of them
		case m.options.Route == nil && len(missing) > 0:
			missing = []string{""}
		}

		for _, name := range missing {
			to.events = append(to.events, e.id)
			to.destinations = append(to.destinations, name)
		}

		if have.open || len(missing) > 0 {
			to.deferred = append(to.deferred, e.id)
		} else {
			to.done = append(to.done, e.id)
		}
	}

	return &to
}

// route returns the readers of an event type.
func (m *modeChange) route(r *readers, eventType string) []string {
	if m.options.Route != nil {
		return r.of(m.options.Route(eventType))
	}

	names := make([]string, 0, len(r.byName))
	for name := range r.byName {
		names = append(names, name)
	}

	return names
}

// write writes the marks of events with ids from low to high. Deliveries come before events:
// settlements lock them in this order.
func (to *marks) write(ctx context.Context, tx pgx.Tx, low, high int64) error {
	if len(to.events) > 0 {
		_, err := tx.Exec(ctx, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state, available_at)
			SELECT e.id, p.destination, e.event_type, 'retry', `+availableAt+`
			FROM unnest($1::bigint[], $2::text[]) AS p(event_id, destination)
			JOIN outbox_events AS e ON e.id = p.event_id AND e.id >= $3 AND e.id <= $4
			ON CONFLICT DO NOTHING`, to.events, to.destinations, low, high)
		if err != nil {
			return err
		}
	}

	if len(to.deferred) > 0 {
		_, err := tx.Exec(ctx, `UPDATE outbox_events SET state = 'deferred'
			WHERE id = ANY($1::bigint[]) AND id >= $2 AND id <= $3 AND state = 'fresh'`, to.deferred, low, high)
		if err != nil {
			return err
		}
	}

	if len(to.done) > 0 {
		_, err := tx.Exec(ctx, `UPDATE outbox_events SET state = 'done', processed_at = clock_timestamp()
			WHERE id = ANY($1::bigint[]) AND id >= $2 AND id <= $3 AND state = 'fresh'`, to.done, low, high)
		return err
	}

	return nil
}
