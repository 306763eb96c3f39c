package deliveries

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/session"
)

// Leases are the rows that one relay of a queue has leased. The relay holds the advisory lock with the number Owner:
// the leases of an owner whose lock is free are free.
type Leases struct {
	Owner int64
	// Length is how long a lease lasts unless it is renewed.
	Length time.Duration
}

// held is the condition under which the relay still has a lease; excluded are the leased rows. Its second line is
// written so that it matches no index: the index of running deliveries by owner has all leases of this relay, and the
// planner, without statistics for them, would search them all for each answer.
const held = ` d.event_id = excluded.event_id AND d.destination = excluded.destination
	AND d.state || '' = 'running' AND d.lease_owner + 0 = excluded.owner AND d.lease_token = excluded.token`

const (
	sqlRemoveHeld = `DELETE FROM outbox_deliveries AS d USING
		(SELECT p.event_id, p.destination, p.token, $12::bigint AS owner` + from + `) AS excluded
	WHERE` + held + ` AND ` + present
	// sqlHeld counts the rows whose lease still holds, and whose event is in the table.
	sqlHeld = `SELECT count(*) FROM outbox_deliveries AS d,
		(SELECT p.event_id, p.destination, p.token, $12::bigint AS owner` + from + `) AS excluded
	WHERE` + held + ` AND ` + present
	sqlPutHeld = `UPDATE outbox_deliveries AS d SET ` + set + `
		FROM (SELECT ` + values + `, p.token, $12::bigint AS owner` + from + `) AS excluded
	WHERE` + held + ` AND (excluded.state <> 'dead' OR ` + present + `)`
)

// Finish writes the outcome of leased rows whose lease still holds: it deletes the rows in done, and replaces the rows
// in put. It returns the number of rows.
func (l Leases) Finish(ctx context.Context, tx pgx.Tx, done, put []Entry) (affected int, err error) {
	encoding := tx.Conn().PgConn().ParameterStatus("server_encoding")
	run := func(sql string, args ...any) error {
		tag, err := tx.Exec(ctx, sql, args...)
		affected += int(tag.RowsAffected())
		return err
	}

	if args := Args(done, encoding, l.Owner, l.Length); len(done) > 0 {
		if _, err := tx.Exec(ctx, SQLAcknowledged, args[:2]...); err != nil {
			return 0, err
		}
		if err := run(sqlRemoveHeld, args[:12]...); err != nil {
			return 0, err
		}
	}

	if len(put) > 0 {
		err = run(sqlPutHeld, Args(put, encoding, l.Owner, l.Length)...)
	}

	if args := ReportArgs(put); args != nil && err == nil {
		_, err = tx.Exec(ctx, SQLReport, args...)
		if err == nil {
			err = CheckReports(ctx, tx, put)
		}
	}

	all := slices.Concat(done, put)
	if err != nil || affected == len(all) {
		return affected, err
	}

	// Either the leases are over, or the writes were ignored.
	var left int64
	if err := tx.QueryRow(ctx, sqlHeld, Args(all, encoding, l.Owner, l.Length)[:12]...).Scan(&left); err != nil {
		return affected, err
	}
	if left > 0 {
		return affected, &session.IgnoredError{Statement: "finish", Rows: int64(affected) + left, Changed: int64(affected)}
	}

	return affected, nil
}

// Renew extends leases. It does not change a lease that another relay has taken over: this relay will not write its
// outcome.
func (l Leases) Renew(ctx context.Context, c *pgx.Conn, tokens []int64) error {
	const mine = ` WHERE state = 'running' AND lease_owner = $1 AND lease_token = ANY($2)`

	tag, err := c.Exec(ctx, `UPDATE outbox_deliveries
		SET lease_until = clock_timestamp() + $3::bigint * interval '1 microsecond'`+mine, l.Owner, tokens, l.Length.Microseconds())
	if err != nil || tag.RowsAffected() == int64(len(tokens)) {
		return err
	}

	// Either some leases are over, or the writes were ignored.
	var left int64
	if err := c.QueryRow(ctx, `SELECT count(*) FROM outbox_deliveries`+mine, l.Owner, tokens).Scan(&left); err != nil {
		return err
	}

	err = session.CheckChanged("renew leases", tag.RowsAffected(), left)
	return errors.Join(err, session.ForgetIgnored(ctx, c, err))
}

// TakeOverBatch is how many leases one statement takes over. Without a bound, the many leases of a dead relay would
// make it time out again and again.
const TakeOverBatch = 1000

// Unpark makes up to TakeOverBatch parked rows of a queue due, which keeps no order. They come from a stream, by a restore.
func Unpark(ctx context.Context, c *pgx.Conn) (n int, err error) {
	return makeDue(ctx, c, ``, `ordering_key IS NOT NULL AND state IN ('retry', 'parked')
		AND state = 'parked'`, ` ORDER BY destination, ordering_key, event_id`)
}

// TakeOverLost makes rows of this relay due again if their token is not live: the database has lost the commits that
// ended the leases.
func (l Leases) TakeOverLost(ctx context.Context, c *pgx.Conn, t Tokens) (int, error) {
	live := append([]int64{}, t.Live...) // never nil: <> ALL (NULL) is never true
	return takeOver(ctx, c, `lease_owner = $1 AND lease_token <= $2 AND lease_token <> ALL($3)`,
		"the database lost the outcome of the delivery", l.Owner, t.Last, live)
}

// TakeOver makes rows due again whose lease has expired, or whose owner's lock is free.
func (l Leases) TakeOver(ctx context.Context, c *pgx.Conn) (int, error) {
	gone, err := l.goneOwners(ctx, c)
	if err != nil {
		return 0, err
	}
	return takeOver(ctx, c, `(lease_owner = ANY($1) OR lease_until < clock_timestamp())`,
		"the relay that ran the delivery is gone, or did not renew its lease", gone)
}

// takeOver makes the running deliveries due that match the condition.
func takeOver(ctx context.Context, c *pgx.Conn, condition, why string, args ...any) (n int, err error) {
	return makeDue(ctx, c, `, lease_owner = NULL, lease_token = NULL, lease_until = NULL,
		error_class = coalesce(error_class, 'relay'), last_error = coalesce(last_error, '`+why+`')`,
		`state = 'running' AND `+condition, ``, args...)
}

// makeDue makes up to TakeOverBatch rows due that match a condition, and sets other columns. It skips rows that are being
// settled. If the write of a row is refused alone, or ignored, it makes the others due, and returns the refusal.
func makeDue(ctx context.Context, c *pgx.Conn, set, condition, order string, args ...any) (n int, err error) {
	page := order + fmt.Sprintf(` LIMIT %d`, TakeOverBatch)
	update := func(which string, args ...any) error {
		var locked, changed int64
		err := c.QueryRow(ctx, `WITH page AS MATERIALIZED (SELECT ctid FROM outbox_deliveries WHERE `+condition+which+page+`
			FOR UPDATE SKIP LOCKED),
			due AS (UPDATE outbox_deliveries SET state = 'retry', available_at = clock_timestamp(), updated_at = clock_timestamp()`+set+`
				WHERE ctid = ANY(ARRAY(SELECT ctid FROM page)) RETURNING 1)
			SELECT (SELECT count(*) FROM page), (SELECT count(*) FROM due)`, args...).Scan(&locked, &changed)

		n += int(changed)
		return cmp.Or(err, session.CheckChanged("make due", changed, locked))
	}

	if err := update("", args...); !session.IsOfRow(err) {
		return n, err
	}

	rows, err := c.Query(ctx, `SELECT event_id, destination FROM outbox_deliveries WHERE `+condition+page, args...)
	if err != nil {
		return n, err
	}

	left, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Ref])
	if err != nil {
		return n, err
	}

	these := fmt.Sprintf(` AND (event_id, destination) IN (SELECT * FROM unnest($%d::bigint[], $%d::text[]))`,
		len(args)+1, len(args)+2)
	refused, err := session.InHalves(left, func(some []Ref) error {
		return update(these, append(slices.Clone(args), RefArgs(some)...)...)
	})
	if err == nil && len(refused) > 0 {
		err = fmt.Errorf("event %d, one of %d: %w", refused[0].Item.EventID, len(refused), refused[0].Err)
	}

	return n, err
}

// goneOwners returns the other owners of leases whose lock is free, never nil. It skips from owner to owner in the
// index instead of reading every lease. pg_locks shows a bigint key as its two halves.
func (l Leases) goneOwners(ctx context.Context, c *pgx.Conn) ([]int64, error) {
	rows, err := c.Query(ctx, `WITH RECURSIVE o(owner) AS (
			(SELECT lease_owner FROM outbox_deliveries WHERE state = 'running' ORDER BY lease_owner LIMIT 1)
			UNION ALL
			SELECT (SELECT lease_owner FROM outbox_deliveries WHERE state = 'running' AND lease_owner > o.owner
				ORDER BY lease_owner LIMIT 1)
			FROM o WHERE o.owner IS NOT NULL)
		SELECT owner FROM o WHERE owner <> $1
		AND NOT EXISTS (SELECT FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
			AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
			AND l.classid = (o.owner >> 32)::oid AND l.objid = (o.owner & 4294967295)::oid)`, l.Owner)
	if err != nil {
		return nil, err
	}

	return pgx.CollectRows(rows, pgx.RowTo[int64])
}
