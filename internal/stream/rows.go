package stream

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/wire"
)

// An event that could not be delivered is a row of outbox_deliveries, and only the owner of a unit
// handles the rows of its destination. So a row is read without a lock, and has no mark that it is
// running.

// stored is a row as it was read, with its event.
type stored struct {
	id       int64
	state    string
	at       pgtype.Timestamptz // available_at
	attempts int
	key      string // ordering_key
	first    bool   // no live row comes before it in its queue
	due      bool
	delayed  bool      // the event was not available yet when it was written
	since    time.Time // when it was written, or became available
	missing  bool      // its event is not in the table, for the moment or for good
	over     bool      // a filter keeps it from the destination: nothing is left to deliver
	event    delivery.Event
	refused  error // why the event was not read, and must not be delivered
}

// rowColumns returns the columns that readRows reads.
//
// Times are bounded, because neither infinity nor the ends of PostgreSQL's calendar fit into a
// time.Time. greatest and least pass over NULL, which stands for an event that was not delayed.
func rowColumns(limit int) string {
	return `d.event_id, d.state, least(d.available_at, now() + interval '100 years'), d.attempts, d.replays, coalesce(d.ordering_key, ''),
	d.available_at <= now(), ` + wire.Name("coalesce(e.event_type, d.event_type)", limit) + `, coalesce(` + wire.Name("e.aggregate_type", limit) + `, ''), coalesce(` + wire.Name("e.aggregate_id", limit) + `, ''), ` + wire.Unread("e.payload::text", limit) + `, ` + wire.Unread("e.headers::text", limit) + `,
	CASE WHEN e.id IS NOT NULL THEN least(greatest(e.created_at, '0001-01-01'), '9999-01-01') END, ` + wire.Name("e.traceparent", limit) + `,
	CASE WHEN e.available_at IS NOT NULL THEN least(greatest(e.available_at, '0001-01-01'), '9999-01-01') END, e.bytes, ` + wire.Unread("e.payload_bytes", limit) + `, ` + wire.Name("e.content_type", limit)
}

// rowEvent returns the join that gets the event of a row, as e.
func rowEvent(limit int) string {
	return `LEFT JOIN LATERAL (SELECT *, ` + wire.EventBytes(limit, "") + ` AS bytes FROM outbox_events WHERE id = d.event_id OFFSET 0) AS e ON true`
}

// sqlDue reads the due rows of a destination, after a place in the order of their times. It reads
// $4 rows, whether or not they can be used: a row that is not the first of its queue is returned as
// such. The index has this order.
func sqlDue(limit int, o *order) string {
	live, dead := o.rows("event_id", "d.destination", "d.ordering_key", "1")
	return `SELECT ` + rowColumns(limit) + `, d.ordering_key IS NULL OR d.event_id = least(` + live + `, CASE WHEN $5 THEN ` + dead + ` END)
FROM (SELECT * FROM outbox_deliveries
	WHERE destination = $1 AND state = 'retry' AND available_at <= now() AND (available_at, event_id) > ($2, $3)
	ORDER BY available_at, event_id LIMIT $4) AS d
` + rowEvent(limit)
}

// sqlNextDue returns the time until the first row after a place in the order of their times.
const sqlNextDue = `SELECT (extract(epoch FROM least(available_at, clock_timestamp() + interval '1 hour') - clock_timestamp()) * 1000000)::bigint
FROM outbox_deliveries WHERE destination = $1 AND state = 'retry' AND (available_at, event_id) > ($2, $3) ORDER BY available_at, event_id LIMIT 1`

// sqlLines reads the first rows of queues, up to $3 of each.
func sqlLines(limit int, o *order) string {
	live, dead := o.rows("*", "$1", "w.key", "$3")
	return `SELECT ` + rowColumns(limit) + `, true
FROM unnest($2::text[]) WITH ORDINALITY AS w(key, n)
CROSS JOIN LATERAL (SELECT * FROM (` + live + ` UNION ALL (SELECT * FROM ` + dead + ` AS x WHERE $4)) AS u ORDER BY event_id LIMIT $3) AS d
` + rowEvent(limit) + `
ORDER BY w.n, d.event_id`
}

// sqlWaits returns those of some queues that do not wait: no row is in front, or there is none.
func sqlWaits(o *order) string {
	live, dead := o.rows("event_id, state", "$1", "w.key", "1")
	return `SELECT w.key FROM unnest($2::text[]) AS w(key)
LEFT JOIN LATERAL ` + live + ` AS l ON true
LEFT JOIN LATERAL (SELECT * FROM ` + dead + ` AS dead WHERE $3) AS x ON true
WHERE l.event_id IS NULL AND x.event_id IS NULL OR l.state = 'parked' AND (x.event_id IS NULL OR x.event_id > l.event_id)`
}

// readRows returns the rows of a query in the order of rowColumns, and whether each is the first of
// its queue. It keeps at least one row, and no more than l.Bytes of events; cut reports that there
// were more. why is the reason if the events must not be delivered.
func readRows(ctx context.Context, conn *session.Conn, l engine.Limits, why error, query string, args ...any) (all []stored, cut bool, err error) {
	rows, err := conn.Query(ctx, query, args...)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	room := l.Bytes
	var names wire.Names
	for rows.Next() {
		var s stored
		var payload, raw, contentType, headers, trace []byte
		var at pgtype.Timestamptz
		var created *time.Time
		var available *time.Time
		var bytes *int64
		e := &s.event
		if err := rows.Scan(&s.id, &s.state, &at, &s.attempts, &e.Replay, &s.key, &s.due, &e.Type, &e.AggregateType, &e.AggregateID,
			&payload, &headers, &created, &trace, &available, &bytes, &raw, &contentType, &s.first); err != nil {
			return nil, false, err
		}
		s.missing, s.at = created == nil, at
		e.ID = s.id
		if !s.missing {
			e.CreatedAt = created.UTC()
			s.since, s.delayed = e.CreatedAt, available != nil
			if s.delayed && available.After(s.since) {
				s.since = *available
			}
			if room -= wire.Size(rows.RawValues()); room < 0 && len(all) > 0 {
				return all, true, rows.Err()
			}
			if s.refused = why; bytes != nil {
				s.refused = wire.TooLarge(wire.Int8(*bytes), l.EventBytes)
			}
			e.Payload, e.ContentType = names.Payload(payload, raw, contentType)
			e.Headers = wire.Traced(wire.DecodeHeaders(headers), trace)
			e.Attempt = s.attempts + 1
		}
		all = append(all, s)
	}
	return all, false, rows.Err()
}

// The states of rows, as stored in the column.
const (
	stateRetry    = "retry"
	stateParked   = "parked"
	stateDead     = "dead"
	stateUnrouted = "unrouted"
)
