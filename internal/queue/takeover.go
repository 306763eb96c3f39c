package queue

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/session"
)

// takeOverBatch is how many leases one statement takes over. Without a bound, the many leases of a
// dead relay would make it time out again and again.
const takeOverBatch = 1000

// TakeOver implements [Housekeeper]. A lease is taken over when it has expired, or at once when its
// owner's advisory lock is free. A lease that is being settled is left to the next call.
//
// After each loss of the session, TakeOver also takes over leases of this relay that the relay does
// not know. A crash of PostgreSQL, or a failover to a server that lagged, may undo the last
// commits, and with them the end of a leased delivery. mine is called on the new session: a lease
// that is not live then had ended in a commit, and if the row still has it, that commit is lost.
func (k *Keeper) TakeOver(ctx context.Context, mine func() Tokens) (n int, err error) {
	for {
		some, err := k.takeOverSome(ctx, mine)
		n += some
		if err != nil || some < takeOverBatch {
			return n, err
		}
	}
}

func (k *Keeper) takeOverSome(ctx context.Context, mine func() Tokens) (n int, err error) {
	err = k.Do(ctx, "take over leases", func(ctx context.Context, c *session.Conn) error {
		own := 0
		if k.checked != c.Conn {
			t := mine()
			own, err = takeOver(ctx, c.Conn, `lease_owner = $3 AND lease_token <= $4 AND lease_token <> ALL($5)`,
				"the database lost the outcome of the delivery", k.options.Owner, t.Last, append([]int64{}, t.Live...)) // never nil: <> ALL (NULL) is never true
			if err != nil || own == takeOverBatch {
				n = own
				return err
			}
			k.checked = c.Conn
		}
		owners, err := k.otherOwners(ctx, c.Conn)
		if err != nil {
			return err
		}
		gone := []int64{}
		if len(owners) > 0 {
			if gone, err = goneOwners(ctx, c.Conn, owners); err != nil {
				return err
			}
		}
		n, err = takeOver(ctx, c.Conn, `(lease_owner = ANY($3) OR lease_until < clock_timestamp())`,
			"the relay that ran the delivery is gone, or did not renew its lease", gone)
		n += own
		return err
	})
	return n, err
}

// takeOver makes due the running deliveries that fit the condition, whose parameters begin with $3.
func takeOver(ctx context.Context, c *pgx.Conn, condition, why string, args ...any) (int, error) {
	tag, err := c.Exec(ctx, `UPDATE outbox_deliveries SET state = 'retry', available_at = clock_timestamp(), updated_at = clock_timestamp(),
		lease_owner = NULL, lease_token = NULL, lease_until = NULL,
		error_class = coalesce(error_class, 'ours'), last_error = coalesce(last_error, $1)
		WHERE ctid = ANY(ARRAY(SELECT ctid FROM outbox_deliveries
			WHERE state = 'running' AND `+condition+` LIMIT $2 FOR UPDATE SKIP LOCKED))`,
		append([]any{why, takeOverBatch}, args...)...)
	return int(tag.RowsAffected()), err
}

// otherOwners returns the other owners of leases. It skips from owner to owner in the index instead
// of reading every lease.
func (k *Keeper) otherOwners(ctx context.Context, c *pgx.Conn) ([]int64, error) {
	rows, err := c.Query(ctx, `WITH RECURSIVE o(owner) AS (
			(SELECT lease_owner FROM outbox_deliveries WHERE state = 'running' ORDER BY lease_owner LIMIT 1)
			UNION ALL
			SELECT (SELECT lease_owner FROM outbox_deliveries WHERE state = 'running' AND lease_owner > o.owner ORDER BY lease_owner LIMIT 1)
			FROM o WHERE o.owner IS NOT NULL)
		SELECT owner FROM o WHERE owner <> $1`, k.options.Owner)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

// goneOwners returns those of the owners whose lock is free. pg_locks shows a bigint key as its two
// halves.
func goneOwners(ctx context.Context, c *pgx.Conn, owners []int64) ([]int64, error) {
	rows, err := c.Query(ctx, `SELECT o.owner FROM unnest($1::bigint[]) AS o(owner)
		WHERE NOT EXISTS (SELECT FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
			AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
			AND l.classid = (o.owner >> 32)::oid AND l.objid = (o.owner & 4294967295)::oid)`, owners)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

// Claimers implements [Companions].
func (k *Keeper) Claimers(ctx context.Context) (pids []int32, err error) {
	err = k.Do(ctx, "list the sessions that claim", func(ctx context.Context, c *session.Conn) error {
		rows, err := c.Query(ctx, `SELECT pid FROM pg_stat_activity
			WHERE application_name = $1 AND datname = current_database() AND pid IS NOT NULL ORDER BY pid`, "notifyd/"+roleClaim)
		if err != nil {
			return err
		}
		pids, err = pgx.CollectRows(rows, pgx.RowTo[int32])
		return err
	})
	return pids, err
}
