package stream

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/wire"
)

// What could not be delivered is a row of outbox_deliveries, and the owner of a
// unit is the only one who deals with the rows of its destination. So a row is
// read without a lock, and nothing in it says that it is under way.

// stored is a row as it was read, with its event.
type stored struct {
	id       int64
	state    string
	at       pgtype.Timestamptz // available_at
	attempts int
	key      string // ordering_key
	first    bool   // no row that is not dead comes before it in its line
	due      bool
	delayed  bool // the event was not to be available when it was written
	orphan   bool // the event was deleted by hand
	event    dispatch.Event
}

// rowColumns are read by readRow.
//
// Times are bounded, because neither infinity nor the ends of PostgreSQL's calendar fit into a time of Go.
const rowColumns = `d.event_id, d.state, least(d.available_at, now() + interval '100 years'), d.attempts, d.replays, coalesce(d.ordering_key, ''),
	d.available_at <= now(), e.event_type, coalesce(e.aggregate_type, ''), coalesce(e.aggregate_id, ''), e.payload::text, e.headers::text,
	least(greatest(e.created_at, '0001-01-01'), '9999-01-01'), e.traceparent, e.available_at IS NOT NULL`

// sqlDue reads the rows of a destination that are due, behind a place in the order of
// their times. It looks at $4 rows, however many of them are of use: one that is not the
// first of its line is returned as such. The index has the order.
const sqlDue = `SELECT ` + rowColumns + `, f.event_id IS NULL OR f.event_id = d.event_id
FROM (SELECT * FROM outbox_deliveries
	WHERE destination = $1 AND state = 'retry' AND available_at <= now() AND (available_at, event_id) > ($2, $3)
	ORDER BY available_at, event_id LIMIT $4) AS d
LEFT JOIN LATERAL (SELECT b.event_id FROM outbox_deliveries AS b
	WHERE b.destination = d.destination AND b.ordering_key = d.ordering_key AND (b.state IN ('retry', 'parked') OR $5 AND b.state = 'dead')
	ORDER BY b.event_id LIMIT 1) AS f ON d.ordering_key IS NOT NULL
LEFT JOIN outbox_events AS e ON e.id = d.event_id`

// sqlNextDue asks for the time of the first row behind a place in the order of their times.
const sqlNextDue = `SELECT (extract(epoch FROM least(available_at, clock_timestamp() + interval '1 hour') - clock_timestamp()) * 1000000)::bigint
FROM outbox_deliveries WHERE destination = $1 AND state = 'retry' AND (available_at, event_id) > ($2, $3) ORDER BY available_at, event_id LIMIT 1`

// sqlLines reads the first rows of lines, up to $3 of each.
const sqlLines = `SELECT ` + rowColumns + `, true
FROM unnest($2::text[]) WITH ORDINALITY AS w(key, n)
CROSS JOIN LATERAL (SELECT * FROM outbox_deliveries
	WHERE destination = $1 AND ordering_key = w.key AND (state IN ('retry', 'parked') OR $4 AND state = 'dead')
	ORDER BY event_id LIMIT $3) AS d
LEFT JOIN outbox_events AS e ON e.id = d.event_id
ORDER BY w.n, d.event_id`

// sqlWaits returns those of some lines that wait for nothing: no row is in front, or none at all is there.
const sqlWaits = `SELECT w.key FROM unnest($2::text[]) AS w(key)
LEFT JOIN LATERAL (SELECT state FROM outbox_deliveries
	WHERE destination = $1 AND ordering_key = w.key AND (state IN ('retry', 'parked') OR $3 AND state = 'dead')
	ORDER BY event_id LIMIT 1) AS d ON true
WHERE d.state IS NULL OR d.state = 'parked'`

// sqlHeads reads the first row of each line behind a name, up to $3 lines, skipping
// from name to name in the index. Lines of dead letters that block nobody have none.
const sqlHeads = `WITH RECURSIVE line(key, n) AS (
	(SELECT ordering_key, 1 FROM outbox_deliveries WHERE destination = $1 AND ordering_key > $2 ORDER BY ordering_key LIMIT 1)
	UNION ALL
	SELECT (SELECT ordering_key FROM outbox_deliveries WHERE destination = $1 AND ordering_key > line.key ORDER BY ordering_key LIMIT 1), n + 1
	FROM line WHERE line.key IS NOT NULL AND n < $3)
SELECT line.key, d.event_id, d.state FROM line
LEFT JOIN LATERAL (SELECT event_id, state FROM outbox_deliveries
	WHERE destination = $1 AND ordering_key = line.key AND (state IN ('retry', 'parked') OR $4 AND state = 'dead')
	ORDER BY event_id LIMIT 1) AS d ON true
WHERE line.key IS NOT NULL`

// sqlUnpark makes up to 5,000 rows due that wait behind others of their aggregate: order
// is not kept any more. It returns as many rows as there were.
const sqlUnpark = `WITH page AS MATERIALIZED (SELECT event_id FROM outbox_deliveries
	WHERE destination = $1 AND ordering_key IS NOT NULL AND state = 'parked' LIMIT 5000)
UPDATE outbox_deliveries AS d SET state = 'retry', available_at = now(), updated_at = now()
FROM page WHERE d.destination = $1 AND d.event_id = page.event_id`

// readRows reads what a query returns in the order of rowColumns, and whether the row
// is the first. It keeps no more than the given bytes of payloads, but one row; cut
// says that there were more.
func readRows(ctx context.Context, conn *pgx.Conn, limit int, query string, args ...any) (all []stored, cut bool, err error) {
	rows, err := conn.Query(ctx, query, args...)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	for rows.Next() {
		var s stored
		var kind, payload, headers, trace *string
		var at pgtype.Timestamptz
		var created *time.Time
		var delayed *bool
		e := &s.event
		if err := rows.Scan(&s.id, &s.state, &at, &s.attempts, &e.Replay, &s.key, &s.due, &kind, &e.AggregateType, &e.AggregateID,
			&payload, &headers, &created, &trace, &delayed, &s.first); err != nil {
			return nil, false, err
		}
		s.orphan, s.at = kind == nil, at
		if !s.orphan {
			e.ID, e.Type, e.CreatedAt, s.delayed = s.id, *kind, created.UTC(), *delayed
			e.Payload = []byte(*payload)
			if limit -= len(*payload) + len(bytesOf(headers)); limit < 0 && len(all) > 0 {
				return all, true, rows.Err()
			}
			e.Headers = wire.Traced(wire.DecodeHeaders(bytesOf(headers)), bytesOf(trace))
			e.Attempt = s.attempts + 1
		}
		all = append(all, s)
	}
	return all, false, rows.Err()
}

func bytesOf(s *string) []byte {
	if s == nil {
		return nil
	}
	return []byte(*s)
}

// duePlace is a place in the order of due rows.
type duePlace struct {
	at pgtype.Timestamptz
	id int64
}

// dueStart is before all rows.
func dueStart() duePlace {
	return duePlace{pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, math.MinInt64}
}

// readDue returns up to n rows that are due, behind the unit's place, and whether there
// may be more.
func (u *unit) readDue(ctx context.Context, conn *pgx.Conn, n int) (all []stored, more bool, err error) {
	all, cut, err := readRows(ctx, conn, u.e.cfg.Bytes, sqlDue, u.name, u.duePlace.at, u.duePlace.id, n, u.lane.Blocks())
	if err != nil {
		return nil, false, fmt.Errorf("read due deliveries of %q: %w", u.name, err)
	}
	return all, cut || len(all) == n, nil
}

// nextDue returns when the next row behind the unit's place becomes due, and false if none is known to.
func (u *unit) nextDue(ctx context.Context, conn *pgx.Conn) (time.Duration, bool, error) {
	var us int64
	err := conn.QueryRow(ctx, sqlNextDue, u.name, u.duePlace.at, u.duePlace.id).Scan(&us)
	switch {
	case isNoRows(err):
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("look when deliveries of %q are due: %w", u.name, err)
	}
	return max(0, time.Duration(us)*time.Microsecond), true, nil
}

// headsPage is how many lines are read by one statement: some tens of milliseconds.
const headsPage = 2000

// loadLines blocks the aggregates of which something is stored, before anything is
// read that comes after it. Some lines wait behind nothing that is stored: the relay
// before did not come to it, or what is in front was in its memory, and is open. So they are
// gone on with only when everything that is open, or comes before them, was read.
func (u *unit) loadLines(ctx context.Context, conn *pgx.Conn) error {
	if !u.lane.Ordered() {
		return u.unpark(ctx, conn)
	}
	for after, n := "", headsPage; n == headsPage; {
		rows, err := conn.Query(ctx, sqlHeads, u.name, after, headsPage, u.lane.Blocks())
		if err != nil {
			return fmt.Errorf("read what is stored of %q: %w", u.name, err)
		}
		n = 0
		var key string
		var id *int64
		var state *string
		_, err = pgx.ForEachRow(rows, []any{&key, &id, &state}, func() error {
			n++
			after = key
			if state == nil {
				return nil
			}
			u.lane.Block(u.e.keys.Named(key))
			if *state == stateParked {
				u.doubtful[u.e.keys.Named(key)], u.early = key, max(u.early, *id)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("read what is stored of %q: %w", u.name, err)
		}
	}
	return nil
}

func (u *unit) unpark(ctx context.Context, conn *pgx.Conn) error {
	for {
		var tag pgconn.CommandTag
		err := u.owned(ctx, conn, func(tx pgx.Tx) (err error) {
			tag, err = tx.Exec(ctx, sqlUnpark, u.name)
			return err
		})
		if err != nil {
			return fmt.Errorf("let go what waits at %q: %w", u.name, err)
		}
		if tag.RowsAffected() == 0 {
			return nil
		}
	}
}

// The states of rows, as they stand in the column.
const (
	stateRetry    = string(dispatch.EntryRetry)
	stateParked   = string(dispatch.EntryParked)
	stateDead     = string(dispatch.EntryDead)
	stateUnrouted = string(dispatch.EntryUnrouted)
)
