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
	// sqlSampleFresh and sqlSampleStream return the ids of the first waiting events, as sqlWaitFresh and
	// sqlWaitStream count them, except for the gaps of positions.
	sqlSampleFresh  = `SELECT id FROM outbox_events WHERE state = 'fresh' ORDER BY id LIMIT $1`
	sqlSampleStream = `SELECT id FROM outbox_events
		WHERE id > (SELECT coalesce(min(p.head), (SELECT origin_head FROM outbox_mode)) FROM outbox_positions AS p)
		ORDER BY id LIMIT $1`

	// sqlSample uses an array instead of a join: for a join the planner may read all events in id order.
	sqlSample = `SELECT id, event_type, coalesce(aggregate_type, ''), coalesce(aggregate_id, ''), payload::text,
		payload_bytes, content_type, headers::text, created_at
		FROM outbox_events WHERE id = ANY(ARRAY(%s)) AND event_type = ANY($2)
			AND coalesce(octet_length(payload::text), octet_length(payload_bytes)) <= 65536 ORDER BY id`
)

// SampleWaiting returns the events among the first n waiting ones that have one of the types and a payload of at most
// 64 KiB. It reads by index and locks nothing. The connection must come from a [Connector].
func SampleWaiting(ctx context.Context, conn outboxsql.DB, types []string, n int) ([]delivery.Event, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, RoundTripTimeout, errNoAnswer)
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

	var names wire.Names
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e delivery.Event, err error) {
		var payload, raw, contentType, headers []byte
		err = row.Scan(&e.ID, &e.Type, &e.AggregateType, &e.AggregateID,
			&payload, &raw, &contentType, &headers, &e.CreatedAt)
		if err != nil {
			return e, err
		}

		e.Payload, e.ContentType = names.Payload(payload, raw, contentType)
		e.Headers = wire.DecodeHeaders(headers)
		return e, nil
	})
	if err != nil {
		return nil, fmt.Errorf("read waiting events: %w", err)
	}

	return all, nil
}
