package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/session"
)

// Overdue names a row that relays should have processed.
type Overdue struct {
	// EventID alone names a fresh event of a queue; with Destination it names a stored delivery. Destination alone
	// names the destination's stored delivery that is due first; the empty destination stands for events with no
	// destination yet.
	EventID     int64
	Destination string
	// Position names the position of Destination instead of a delivery.
	Position bool
}

const (
	sqlLockedEvent = `SELECT EXISTS (SELECT FROM outbox_events WHERE id = $1 AND state = 'fresh')
		AND NOT EXISTS (SELECT FROM (SELECT id FROM outbox_events WHERE id = $1 FOR UPDATE SKIP LOCKED) AS free)`

	sqlLockedDelivery = `SELECT EXISTS (SELECT FROM outbox_deliveries WHERE event_id = $1 AND destination = $2)
		AND NOT EXISTS (SELECT FROM (SELECT event_id FROM outbox_deliveries WHERE event_id = $1 AND destination = $2
			FOR UPDATE SKIP LOCKED) AS free)`

	sqlLockedDue = `WITH due AS MATERIALIZED (SELECT event_id, destination FROM outbox_deliveries
			WHERE state = 'retry' AND destination BETWEEN $1 AND $1 AND available_at <= clock_timestamp()
			ORDER BY destination, available_at LIMIT 1)
		SELECT EXISTS (SELECT FROM due) AND NOT EXISTS (SELECT FROM (SELECT d.event_id FROM outbox_deliveries AS d
			WHERE (d.event_id, d.destination) = (SELECT event_id, destination FROM due) FOR UPDATE SKIP LOCKED) AS free)`

	sqlLockedPosition = `SELECT EXISTS (SELECT FROM outbox_positions WHERE destination = $1)
		AND NOT EXISTS (SELECT FROM (SELECT number FROM outbox_positions WHERE destination = $1 FOR UPDATE SKIP LOCKED) AS free)`
)

// Locked reports whether another session has locked the row, so that relays skip it or wait for it. It returns false
// if the row is gone. Locked itself locks the row for a moment.
func (w *Watch) Locked(ctx context.Context, o Overdue) (is bool, err error) {
	sql := sqlLockedDue
	args := []any{o.Destination}
	switch {
	case o.Position:
		sql = sqlLockedPosition
	case o.EventID != 0 && o.Destination != "":
		sql = sqlLockedDelivery
		args = []any{o.EventID, o.Destination}
	case o.EventID != 0:
		sql = sqlLockedEvent
		args = []any{o.EventID}
	}

	err = w.run(ctx, "find out whether overdue work is locked", func(ctx context.Context, conn *session.Conn) error {
		return conn.QueryRow(ctx, sql, args...).Scan(&is)
	})
	return is, err
}

// LostLease returns a delivery whose lease ended at least that long ago, and was not taken over; ok is false without
// one. It reads the running deliveries of all relays, which are few.
func (w *Watch) LostLease(ctx context.Context, ago time.Duration) (o Overdue, ok bool, err error) {
	err = w.run(ctx, "find leases that no relay holds", func(ctx context.Context, conn *session.Conn) error {
		err := conn.QueryRow(ctx, `SELECT event_id, destination FROM outbox_deliveries
			WHERE state = 'running' AND lease_until < clock_timestamp() - $1::bigint * interval '1 microsecond'
			ORDER BY lease_owner LIMIT 1`, ago.Microseconds()).Scan(&o.EventID, &o.Destination)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}

		ok = err == nil
		return err
	})
	return o, ok, err
}

// Unrouted is the first event of a type without a route.
type Unrouted struct {
	EventType string
	EventID   int64
	// UpdatedAt is when a relay last wrote the event's row.
	UpdatedAt time.Time
}

// sqlUnrouted skips from type to type in the index, as the backlog does.
const sqlUnrouted = deliveries.SQLUnroutedTypes + `SELECT t.type, d.event_id, d.updated_at
	FROM (SELECT type FROM t WHERE type IS NOT NULL LIMIT $1) AS t CROSS JOIN LATERAL (
		SELECT event_id, updated_at FROM outbox_deliveries
		WHERE state = 'unrouted' AND event_type BETWEEN t.type AND t.type ORDER BY event_type, event_id LIMIT 1) AS d`

// Unrouted returns the first stored unrouted event of each type.
func (w *Watch) Unrouted(ctx context.Context) (all []Unrouted, err error) {
	err = w.run(ctx, "list event types without a route", func(ctx context.Context, conn *session.Conn) error {
		rows, err := conn.Query(ctx, sqlUnrouted, backlogNames)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Unrouted])
		return err
	})
	return all, err
}
