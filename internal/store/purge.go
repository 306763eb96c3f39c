package store

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/session"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// deleteOld deletes the old events among those seen that have no row. The end of its condition follows.
	deleteOld = `expired AS MATERIALIZED (
		` + expired + `),
	gone AS (DELETE FROM outbox_events AS e USING expired WHERE e.id = expired.id`
	// expiredFree replaces the begin of deleteOld: it leaves the events that another transaction has locked, such as one that
	// has inserted a foreign key to them and is open. It locks each row, so it is not the rule.
	expired = `SELECT s.id FROM seen AS s
		WHERE s.old AND s.id <> ALL($5) AND NOT EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.event_id = s.id)`
	expiredFree = `SELECT e.id FROM seen AS s JOIN outbox_events AS e ON e.id = s.id
		WHERE s.old AND s.id <> ALL($5) AND NOT EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.event_id = s.id)
		FOR UPDATE OF e SKIP LOCKED`
	// notDeleted are the events that deleteOld has left.
	notDeleted = `ARRAY(SELECT id FROM expired EXCEPT SELECT id FROM gone)`
	// sqlStillThere reads which events were left because a trigger has ignored their deletion: another session has neither
	// deleted nor changed them.
	sqlStillThere = `SELECT id FROM outbox_events WHERE id = ANY($1::bigint[]) AND (state = 'done' OR $2) ORDER BY id`
)

// sqlPurge bounds the rows read, not the rows deleted: it passes rows that stay once, not in every batch.
const sqlPurge = `WITH seen AS MATERIALIZED (
		SELECT id, state = 'done' AND processed_at < clock_timestamp() - $2::bigint * interval '1 microsecond' AS old,
			state = 'done' AS done
		FROM outbox_events WHERE id > $1 AND id <= $4 ORDER BY id LIMIT $3),
	` + deleteOld + ` AND e.state = 'done' RETURNING e.id)
	SELECT coalesce(max(id), $1), count(*) = $3 AND coalesce(bool_or(old) OR NOT bool_or(done), false), ` + notDeleted + ` FROM seen`

// Events below a position have been delivered, or stored in outbox_deliveries in the same transaction: one snapshot
// shows both. A replay still needs the events above its head. Without positions, only events that were done before
// the table became a stream have been delivered.
const sqlPurgeStream = `WITH low AS MATERIALIZED (
		SELECT min(least(head + 1, lower(open))) AS id FROM (
			SELECT head, open FROM outbox_positions
			UNION ALL SELECT head, open FROM outbox_replays WHERE state = 'running'
			UNION ALL SELECT origin_head, origin_open FROM outbox_mode WHERE one AND NOT EXISTS (SELECT FROM outbox_positions)) AS p),
	seen AS MATERIALIZED (
		SELECT id, created_at < clock_timestamp() - $2::bigint * interval '1 microsecond' AS old
		FROM outbox_events WHERE id > $1 AND id <= $4 AND id < (SELECT id FROM low) ORDER BY id LIMIT $3),
	` + deleteOld + ` RETURNING e.id)
	SELECT coalesce(max(id), $1), count(*) = $3 AND coalesce(bool_or(old), false), ` + notDeleted + ` FROM seen`

// ErrNoProgress is returned by Purge for a batch size below 1.
var ErrNoProgress = errors.New("purge batch must be at least 1")

// Purge deletes up to batch delivered events that were done longer ago than keep, lowest ids first, from one range of
// ids. It returns the id after which to continue. more is false at the end, and after a batch with delivered events
// that are too young and none that is old enough. Events with unfinished deliveries or dead letters stay.
//
// In a stream, Purge deletes events that were written longer ago than keep and lie below all positions: below their
// heads, and outside their open ranges. The events in except stay. It returns the events that were not deleted because a
// trigger ignores that.
func (k *Session) Purge(ctx context.Context, in Range, keep time.Duration, batch int, except ...int64) (next int64, more bool, ignored []int64, err error) {
	if batch < 1 {
		return in.After, false, nil, ErrNoProgress
	}

	err = k.Do(ctx, "purge delivered events", func(ctx context.Context, c *session.Conn) error {
		statement := sqlPurge
		isStream := k.options.Mode == outboxsql.ModeStream
		if isStream {
			statement = sqlPurgeStream
		}

		var left []int64
		purge := func(statement string) error {
			row := c.QueryRow(ctx, statement, in.After, keep.Microseconds(), batch, in.Upto, append([]int64{}, except...))
			return row.Scan(&next, &more, &left)
		}

		err := purge(statement)
		if code, _ := stateOf(err); code == lockNotAvailable {
			err = purge(strings.Replace(statement, expired, expiredFree, 1))
		}
		if err != nil || len(left) == 0 {
			return err
		}

		rows, err := c.Query(ctx, sqlStillThere, left, isStream)
		if err != nil {
			return err
		}

		ignored, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	})

	return next, more, ignored, err
}

// First returns the first event of a range of ids.
func (k *Session) First(ctx context.Context, in Range) (id int64, err error) {
	err = k.Do(ctx, "find an event that cannot be purged", func(ctx context.Context, c *session.Conn) error {
		return c.QueryRow(ctx, `SELECT id FROM outbox_events WHERE id > $1 AND id <= $2 ORDER BY id LIMIT 1`, in.After, in.Upto).Scan(&id)
	})
	return id, err
}
