package store

import (
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/internal/session"
	outboxsql "github.com/notifyd/notifyd/sql"

	"github.com/notifyd/notifyd/observe"
)

// Watch runs the queries of monitoring. Each query opens its own connection; one query runs at a time. On the
// Session's connection, a slow query would delay the renewal of leases. A cancelled one would end the session that
// proves that the relay is alive. Several goroutines may use a Watch.
type Watch struct {
	connector *Connector
	turn      chan struct{} // capacity 1: held by a query
}

// NewWatch returns a Watch, which needs no Close.
func NewWatch(c *Connector) *Watch { return &Watch{connector: c, turn: make(chan struct{}, 1)} }

// Oldest returns the age of the event that has waited longest, 0 if no event waits. It ignores dead letters, unrouted
// events, and deliveries whose first attempt is due later. A delivery that waits because its destination failed
// counts, with or without a counted attempt.
//
// Fresh events of a queue are searched above the id o.After, because the index may hold many delivered ones. Events
// of a stream are searched at the positions, by o.Route.
func (w *Watch) Oldest(ctx context.Context, o BacklogOptions) (age time.Duration, err error) {
	o.Schema = w.connector.Schema
	o.CountsOnly = true
	err = w.run(ctx, "find the oldest waiting event", func(ctx context.Context, conn *session.Conn) error {
		mode, err := modeOf(ctx, conn, o.Schema)
		if err != nil {
			return err
		}

		if mode != outboxsql.ModeStream {
			var us int64
			err := conn.QueryRow(ctx, sqlOldest, o.After).Scan(&us)
			age = time.Duration(us) * time.Microsecond
			return err
		}

		b, err := ReadBacklog(ctx, conn, o)
		if b.Oldest != nil {
			age = time.Duration(b.Oldest.Age * float64(time.Second))
		}

		return err
	})
	if err != nil {
		return 0, err
	}

	return max(0, age), nil
}

// Backlog is [ReadBacklog] for the Watch's schema; o.Schema is ignored.
func (w *Watch) Backlog(ctx context.Context, o BacklogOptions) (b observe.Backlog, err error) {
	o.Schema = w.connector.Schema
	err = w.run(ctx, "read the backlog", func(ctx context.Context, conn *session.Conn) error {
		b, err = ReadBacklog(ctx, conn, o)
		return err
	})
	return b, err
}

// ask runs f on a new connection, one query at a time.
func (w *Watch) run(ctx context.Context, what string, f func(context.Context, *session.Conn) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, RoundTripTimeout, errNoAnswer)
	defer cancel()

	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}

	conn, err := w.connector.Open(ctx, "watch")
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer Close(ctx, conn.Conn)

	if err := f(ctx, conn); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}

	return nil
}

// sqlOldest skips up to 1,000 delayed events, which relays store as rows.
const sqlOldest = `SELECT coalesce(extract(epoch FROM clock_timestamp() - least(
		(SELECT ` + sqlSince + ` FROM (
				SELECT created_at, available_at FROM outbox_events WHERE state = 'fresh' AND id > $1 ORDER BY id LIMIT 1000) AS f
			WHERE available_at <= now() OR available_at IS NULL LIMIT 1),
		(SELECT ` + sqlSince + ` FROM outbox_events
			WHERE id = (SELECT event_id FROM outbox_deliveries
				WHERE state IN ('retry', 'running', 'parked')
					AND (attempts > 0 OR last_error IS NOT NULL OR available_at <= clock_timestamp())
				ORDER BY event_id LIMIT 1)))) * 1000000, 0)::bigint`
