package outboxsql

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/routing"
)

// toQueue gives each event of a stream the state that a queue would have given it.
//
// A stream leaves every event fresh, and a queue would deliver fresh events again. So each event up to the highest head becomes
// done, or deferred with a row per destination that lacks it, or stays fresh if no destination has it. An event of an open
// transaction needs no wait: it is a gap of every reader or above its head, and correctly fresh when it appears.
//
// A half-converted table is unusable: relays would deliver events that are also stored for a destination. So toQueue records
// the change first, and no relay reads the table until the last step. A repeated call continues with the events that are still
// fresh.
func (m *modeChange) toQueue(ctx context.Context) error {
	if err := m.replayed(ctx); err != nil {
		return err
	}
	if err := m.sharded(ctx); err != nil {
		return err
	}

	r, err := m.readers(ctx)
	if err != nil {
		return fmt.Errorf("read the positions: %w", err)
	}

	if m.options.Route == nil {
		err = m.agreed(ctx, r)
	} else {
		r.former, err = m.formerRoutes(ctx)
		if err == nil {
			err = m.abandoned(ctx, r)
		}
	}
	if err != nil {
		return err
	}

	if err := m.alone(ctx, `UPDATE outbox_mode SET becoming = 'queue'`); err != nil {
		return fmt.Errorf("record the change: %w", err)
	}

	m.say("marking the events that have been delivered, up to event %d", r.head())
	if err := m.markAll(ctx, r); err != nil {
		return fmt.Errorf("mark events: %w", err)
	}

	m.say("making parked deliveries due")
	if err := m.unpark(ctx); err != nil {
		return fmt.Errorf("make parked deliveries due: %w", err)
	}
	if err := m.indexFresh(ctx); err != nil {
		return fmt.Errorf("index waiting events: %w", err)
	}

	m.say("making the table a queue")
	return m.alone(ctx, `DELETE FROM outbox_positions; DELETE FROM outbox_routes;
		UPDATE outbox_mode SET mode = 'queue', becoming = NULL, origin_head = 0, origin_open = '{}', changed_at = clock_timestamp();`)
}

// ErrReplay is returned if a stream cannot become a queue because a replay is running: a queue has no positions, so no
// relay would continue the replay.
var ErrReplay = errors.New("a replay is running")

// replayed returns an error if a replay is running. None can begin during the change.
func (m *modeChange) replayed(ctx context.Context) error {
	var id int64
	var destination string

	err := m.conn.QueryRow(ctx, `SELECT id, destination
		FROM `+m.table("outbox_replays")+` WHERE state = 'running' ORDER BY id LIMIT 1`).Scan(&id, &destination)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("find replays: %w", err)
	}

	return fmt.Errorf("%w: number %d, for %s: let it end, or `notifyd replay stop %[2]d`", ErrReplay, id, destination)
}

// ErrShards is returned where a stream cannot become a queue, because a destination has several shards: each event has been passed
// by one of them, and the change looks at one position of each destination.
var ErrShards = errors.New("a destination has several shards")

// sharded returns an error if a destination has several shards, or had several and its position has not yet reached the
// former positions.
func (m *modeChange) sharded(ctx context.Context) error {
	var destination string
	var shards int

	err := m.conn.QueryRow(ctx, `SELECT destination, shards FROM `+m.table("outbox_positions")+` AS p
		WHERE shards > 1 OR layout <> '' OR EXISTS (
			SELECT FROM jsonb_array_elements(p.former) AS s, jsonb_array_elements(s) AS w
				WHERE (w ->> 'head')::bigint > p.head OR lower(p.open) <= (w ->> 'head')::bigint)
		ORDER BY shards DESC, destination LIMIT 1`).Scan(&destination, &shards)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("find shards: %w", err)
	case shards == 1:
		return fmt.Errorf("%w: %s had until a moment ago, and has not caught up: let a relay deliver, and try again",
			ErrShards, destination)
	}

	return fmt.Errorf("%w: %s has %d: set its shards to 1, let a relay deliver, and try again", ErrShards, destination, shards)
}

// unpark makes parked deliveries due: a queue keeps no order.
func (m *modeChange) unpark(ctx context.Context) error {
	return m.batches(ctx, `UPDATE outbox_deliveries SET state = 'retry', available_at = clock_timestamp(), updated_at = clock_timestamp()
		WHERE ctid = ANY(ARRAY(SELECT ctid FROM outbox_deliveries WHERE state = 'parked' LIMIT $1 FOR UPDATE))`)
}

// readers returns the position of every reader. The beginning of the stream stands for readers
// without a position: for all of them, or, if routes are known, for the unrouted scanner.
func (m *modeChange) readers(ctx context.Context) (*readers, error) {
	rows, err := m.conn.Query(ctx, `SELECT destination, head, open::text FROM (
			SELECT destination, shard, head, open FROM `+m.table("outbox_positions")+`
			UNION ALL SELECT '', 0, origin_head, origin_open FROM `+m.table("outbox_mode")+`
			WHERE NOT EXISTS (SELECT FROM `+m.table("outbox_positions")+` WHERE destination = '' OR $1::boolean)) AS p
		ORDER BY destination, shard`, m.options.Route == nil)
	if err != nil {
		return nil, err
	}

	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r reader, err error) {
		err = row.Scan(&r.destination, &r.Head, &r.Open)
		return r, err
	})

	return newReaders(all), err
}

// formerRoutes returns the routes by which known destinations read events, whatever the present configuration. A route
// that no relay has ended applies only to the ids that the unrouted scanner has read: only those are decided.
func (m *modeChange) formerRoutes(ctx context.Context) ([]routing.Range, error) {
	decided := idset.Watermark{Head: math.MinInt64} // without a scanner, no id
	err := m.conn.QueryRow(ctx, `SELECT head, open::text FROM `+m.table("outbox_positions")+` WHERE destination = '' AND shard = 0`).
		Scan(&decided.Head, &decided.Open)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("read the position of the unrouted scanner: %w", err)
	}

	rows, err := m.conn.Query(ctx, `SELECT `+routing.Columns+` FROM `+m.table("outbox_routes")+` WHERE past IS NULL AND since > 0`)
	if err != nil {
		return nil, fmt.Errorf("read the routes: %w", err)
	}

	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f routing.Range, err error) {
		err = row.Scan(f.Fields()...)
		if !f.Ended {
			f.Ended = true
			f.Until = decided
		}

		return f, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the routes: %w", err)
	}

	return slices.DeleteFunc(all, func(f routing.Range) bool {
		return m.options.Known != nil && !m.options.Known(f.Destination)
	}), nil
}

// abandonedLook is how many waiting events of a destination are counted.
const abandonedLook = 1000

// abandoned returns an error that names the destinations that are not known and for which events wait, unless these are
// to be dropped.
func (m *modeChange) abandoned(ctx context.Context, r *readers) error {
	if m.options.Known == nil {
		return nil
	}

	var found []string
	for _, one := range r.all {
		if one.destination == "" || m.options.Known(one.destination) {
			continue
		}

		n, err := m.waiting(ctx, &one.Watermark)
		switch {
		case err != nil:
			return fmt.Errorf("count the events that wait for %q: %w", one.destination, err)
		case n > abandonedLook:
			found = append(found, fmt.Sprintf("%s, which has come to event %d (more than %d events above)",
				one.destination, one.Head, abandonedLook))
		case n > 0:
			found = append(found, fmt.Sprintf("%s, which has come to event %d (%d events wait)", one.destination, one.Head, n))
		}
	}

	switch {
	case len(found) == 0:
		return nil
	case m.options.Drop:
		m.say("dropping the positions of %s", strings.Join(found, "; "))
		return nil
	}

	return fmt.Errorf("%w: %s: configure them with their routes, or discard these events", ErrAbandoned, strings.Join(found, "; "))
}

// waiting counts the events that a reader has not received, of all types, up to one above [abandonedLook].
func (m *modeChange) waiting(ctx context.Context, received *idset.Watermark) (n int64, err error) {
	low, high := bounds(received.Missing(math.MaxInt64))
	err = m.step(ctx, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT count(*) FROM (
			SELECT FROM unnest($1::bigint[], $2::bigint[]) AS s(low, high) CROSS JOIN LATERAL (
				SELECT FROM outbox_events WHERE id >= s.low AND id <= s.high AND state = 'fresh' ORDER BY id LIMIT $3) AS e
			LIMIT $3) AS found`, low, high, abandonedLook+1).Scan(&n)
	})

	return n, err
}

// agreed returns an error if there is an event that some readers have received and others have not:
// its destinations are unknown.
func (m *modeChange) agreed(ctx context.Context, r *readers) error {
	low, high := bounds(r.disputed())

	var id *int64
	err := m.step(ctx, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT min(e.id) FROM unnest($1::bigint[], $2::bigint[]) AS s(low, high) CROSS JOIN LATERAL (
			SELECT id FROM outbox_events WHERE id >= s.low AND id <= s.high AND state = 'fresh' ORDER BY id LIMIT 1) AS e`, low, high).Scan(&id)
	})
	switch {
	case err != nil:
		return fmt.Errorf("compare the positions: %w", err)
	case id != nil:
		return fmt.Errorf("%w: some have received event %d and others have not: "+
			"let relays catch up and stop them, or pass --config with the routes of the relays", ErrPositions, *id)
	}

	return nil
}

// bounds returns the first and the last id of each range.
func bounds(ids idset.Set) (low, high []int64) {
	for _, g := range ids {
		low = append(low, g.From)
		high = append(high, g.To)
	}
	return low, high
}
