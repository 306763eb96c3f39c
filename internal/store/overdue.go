package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// Overdue is work of a queue that no relay has taken.
type Overdue struct {
	// EventID is the fresh event; 0 for the stored delivery of Destination that is due first.
	EventID     int64
	Destination string
}

// Locked reports whether another session has locked the work, so that relays pass over it; it is false if the work is
// gone by now. For a moment it locks the row itself.
func (w *Watch) Locked(ctx context.Context, o Overdue) (is bool, err error) {
	sql, args := `SELECT EXISTS (SELECT FROM outbox_events WHERE id = $1 AND state = 'fresh')
		AND NOT EXISTS (SELECT FROM (SELECT id FROM outbox_events WHERE id = $1 FOR UPDATE SKIP LOCKED) AS free)`, []any{o.EventID}
	if o.EventID == 0 {
		sql, args = `WITH due AS MATERIALIZED (SELECT event_id, destination FROM outbox_deliveries
				WHERE state = 'retry' AND destination BETWEEN $1 AND $1 AND available_at <= clock_timestamp()
				ORDER BY destination, available_at LIMIT 1)
			SELECT EXISTS (SELECT FROM due) AND NOT EXISTS (SELECT FROM (SELECT d.event_id FROM outbox_deliveries AS d
				WHERE (d.event_id, d.destination) = (SELECT event_id, destination FROM due) FOR UPDATE SKIP LOCKED) AS free)`, []any{o.Destination}
	}
	err = w.ask(ctx, "find out whether overdue work is locked", func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, sql, args...).Scan(&is)
	})
	return is, err
}

// LostLease returns a delivery whose lease ended that long ago and was not taken over; ok is false if there is none.
// It reads the running deliveries of all relays, which are few.
func (w *Watch) LostLease(ctx context.Context, ago time.Duration) (o Overdue, ok bool, err error) {
	err = w.ask(ctx, "find leases that nobody holds", func(ctx context.Context, conn *pgx.Conn) error {
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
