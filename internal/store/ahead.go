package store

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/notifyd/notifyd/internal/session"
)

// ClockReading is a reading of the clock of the database.
type ClockReading struct {
	Database time.Time
	// From and To are this relay's time before and after the reading.
	From, To time.Time
}

// stepAtLeast is more than two clocks diverge between two readings.
const stepAtLeast = time.Second

// SteppedBack reports whether the clock of the database was set back since an earlier reading.
func (r ClockReading) SteppedBack(before ClockReading) bool {
	passed := r.From.Sub(before.To) // by the monotonic clock
	return passed-r.Database.Sub(before.Database) > stepAtLeast
}

// aheadPage bounds the rows that one statement of [CorrectAhead] reads.
const aheadPage = 1000

// sqlAhead reads the rows of a destination that are due later, after a place in their order, and corrects those that were
// written in the future: they wait again as long as when they were written. A delayed event keeps the time that its
// writer chose. A locked row is being delivered, and written again.
const sqlAhead = `WITH page AS MATERIALIZED (SELECT event_id, available_at, updated_at FROM outbox_deliveries
		WHERE state = 'retry' AND destination BETWEEN $1 AND $1
			AND (available_at, event_id) > (greatest(now(), $2::timestamptz), $3::bigint)
		ORDER BY destination, available_at, event_id LIMIT $4::bigint),
	ahead AS MATERIALIZED (SELECT d.place FROM page AS p
		CROSS JOIN LATERAL (SELECT x.ctid AS place FROM outbox_deliveries AS x
			WHERE x.event_id = p.event_id AND x.destination = $1 AND x.state = 'retry' AND x.updated_at = p.updated_at
				AND x.available_at = p.available_at
			FOR UPDATE SKIP LOCKED) AS d
		WHERE p.updated_at > clock_timestamp() AND isfinite(p.available_at)
		AND p.available_at IS DISTINCT FROM (SELECT e.available_at FROM outbox_events AS e WHERE e.id = p.event_id)),
	corrected AS (UPDATE outbox_deliveries AS d SET available_at = clock_timestamp() + (d.available_at - d.updated_at),
		updated_at = clock_timestamp()
		WHERE d.ctid = ANY(ARRAY(SELECT place FROM ahead)) RETURNING d.event_id),
	last AS (SELECT available_at, event_id FROM page ORDER BY available_at DESC, event_id DESC LIMIT 1)
	SELECT (SELECT count(*) FROM corrected), (SELECT count(*) FROM page),
		(SELECT available_at FROM last), coalesce((SELECT event_id FROM last), 0)`

// CorrectAhead corrects the stored deliveries that wait for a time from before the clock of the database was set back,
// and returns how many. It reads all deliveries that are due later, in pages.
func CorrectAhead(ctx context.Context, k *Session) (n int, err error) {
	names, err := k.Destinations(ctx)
	if err != nil {
		return 0, err
	}

	for _, name := range append(names, "") {
		some, err := correctAheadOf(ctx, k, name)
		n += some
		if err != nil {
			return n, err
		}
	}

	return n, nil
}

func correctAheadOf(ctx context.Context, k *Session, name string) (n int, err error) {
	at := pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	id := int64(math.MinInt64)
	for read := aheadPage; read == aheadPage; {
		var corrected int

		err := k.Do(ctx, "correct deliveries from before a step of the clock", func(ctx context.Context, c *session.Conn) error {
			return c.QueryRow(ctx, sqlAhead, name, at, id, aheadPage).Scan(&corrected, &read, &at, &id)
		})
		n += corrected
		if err != nil {
			return n, err
		}
	}

	return n, nil
}
