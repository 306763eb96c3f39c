package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/wire"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// sqlSampleFresh and sqlSampleStream return the ids of the first waiting events, as sqlWaitFresh and sqlWaitStream
	// count them, but for the gaps of positions.
	sqlSampleFresh  = `SELECT id FROM outbox_events WHERE state = 'fresh' ORDER BY id LIMIT $1`
	sqlSampleStream = `SELECT id FROM outbox_events WHERE id > (SELECT coalesce(min(p.head), (SELECT origin_head FROM outbox_mode)) FROM outbox_positions AS p) ORDER BY id LIMIT $1`

	sqlSample = `SELECT id, event_type, coalesce(aggregate_type, ''), coalesce(aggregate_id, ''), payload::text, headers::text, created_at
		FROM outbox_events WHERE id IN (%s) AND event_type = ANY($2) AND octet_length(payload::text) <= 65536 ORDER BY id`
)

// SampleWaiting returns those of the first n waiting events that are of some types, with payloads of up to 64 KiB. It
// reads by index and without any lock. The connection must come from a [Connector].
func SampleWaiting(ctx context.Context, conn *pgx.Conn, types []string, n int) ([]delivery.Event, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, RoundTripTimeout, fmt.Errorf("the database did not answer within %v", RoundTripTimeout))
	defer cancel()
	var mode outboxsql.Mode
	if err := conn.QueryRow(ctx, `SELECT mode FROM outbox_mode WHERE one`).Scan(&mode); err != nil {
		return nil, fmt.Errorf("read waiting events: %w", err)
	}
	ids := sqlSampleFresh
	if mode == outboxsql.ModeStream {
		ids = sqlSampleStream
	}
	rows, err := conn.Query(ctx, fmt.Sprintf(sqlSample, ids), n, types)
	if err != nil {
		return nil, fmt.Errorf("read waiting events: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e delivery.Event, err error) {
		var payload string
		var headers *string
		if err := row.Scan(&e.ID, &e.Type, &e.AggregateType, &e.AggregateID, &payload, &headers, &e.CreatedAt); err != nil {
			return e, err
		}
		e.Payload = []byte(payload)
		if headers != nil {
			e.Headers = wire.DecodeHeaders([]byte(*headers))
		}
		return e, nil
	})
	if err != nil {
		return nil, fmt.Errorf("read waiting events: %w", err)
	}
	return all, nil
}
