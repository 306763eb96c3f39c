package queue

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/wire"
)

// Keeper maintains leases and everything else that no claim finds, on the connection that proves
// that the relay is alive. It implements [LeaseKeeper], [Housekeeper]
// and [Companions].
type Keeper struct {
	*store.Keeper
	options SessionOptions

	checked *pgx.Conn // the session on which TakeOver has checked the relay's own leases; Do guards it
	walk    walk      // of Reroute
}

// NewKeeper returns a keeper that connects on first use. The caller closes it.
func NewKeeper(c *store.Connector, o SessionOptions) *Keeper {
	return &Keeper{Keeper: store.NewKeeper(c, store.KeeperOptions{Owner: o.Owner, Program: o.Program, Refused: o.Refused}), options: o, walk: newWalk()}
}

// Finish implements [LeaseKeeper].
func (k *Keeper) Finish(ctx context.Context, done, put []Entry) (fenced int, err error) {
	err = k.Do(ctx, "settle leased deliveries", func(ctx context.Context, c *session.Conn) error {
		return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
			affected, err := k.finish(ctx, tx, done, put)
			fenced = len(done) + len(put) - affected
			return err
		})
	})
	return fenced, err
}

// held is the condition under which a lease is still ours. Its second line is written so that it
// matches no index: the index of running deliveries by owner has all leases of this relay, and the
// planner, without statistics for them, would search them all for each answer.
const held = ` d.event_id = p.event_id AND d.destination = p.destination
	AND d.state || '' = 'running' AND d.lease_owner + 0 = $1 AND d.lease_token = p.token`

func (k *Keeper) finish(ctx context.Context, tx pgx.Tx, done, put []Entry) (affected int, err error) {
	var ids []int64
	if len(done) > 0 {
		e, n, t := columns(done)
		if _, err := tx.Exec(ctx, deliveries.SQLAcknowledged, e, n); err != nil {
			return 0, err
		}
		tag, err := tx.Exec(ctx, `DELETE FROM outbox_deliveries AS d
			USING unnest($2::bigint[], $3::text[], $4::bigint[]) AS p(event_id, destination, token) WHERE`+held+` AND `+visible,
			k.options.Owner, e, n, t)
		if err != nil {
			return 0, err
		}
		affected += int(tag.RowsAffected())
		ids = append(ids, e...)
	}
	if len(put) > 0 {
		e, n, t := columns(put)
		states, failures, delays := make([]string, len(put)), make([]int, len(put)), make([]int64, len(put))
		classes, texts := make([]string, len(put)), make([]string, len(put))
		for i, p := range put {
			states[i], failures[i], delays[i] = string(p.State), p.Failures, delayMicroseconds(p.Delay)
			classes[i], texts[i] = p.Class, wire.ErrorText(p.Err, tx.Conn().PgConn().ParameterStatus("server_encoding"))
		}
		tag, err := tx.Exec(ctx, `UPDATE outbox_deliveries AS d SET state = p.state, attempts = p.attempts,
			available_at = clock_timestamp() + p.delay * interval '1 microsecond', updated_at = clock_timestamp(),
			error_class = coalesce(nullif(p.error_class, ''), d.error_class), last_error = coalesce(nullif(p.last_error, ''), d.last_error),
			lease_owner = NULL, lease_token = NULL, lease_until = NULL
			FROM unnest($2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::int[], $7::bigint[], $8::text[], $9::text[])
			AS p(event_id, destination, token, state, attempts, delay, error_class, last_error) WHERE`+held+` AND (p.state <> 'dead' OR `+visible+`)`,
			k.options.Owner, e, n, t, states, failures, delays, classes, texts)
		if err != nil {
			return 0, err
		}
		affected += int(tag.RowsAffected())
		ids = append(ids, e...)
	}
	return affected, k.finishEvents(ctx, tx, ids)
}

func columns(entries []Entry) (ids []int64, names []string, tokens []int64) {
	for _, e := range entries {
		ids, names, tokens = append(ids, e.EventID), append(names, e.Destination), append(tokens, e.Token)
	}
	return ids, names, tokens
}

func (k *Keeper) finishEvents(ctx context.Context, tx pgx.Tx, ids []int64) error {
	if _, err := tx.Exec(ctx, sqlLock, ids); err != nil {
		return err
	}
	if k.options.Delete {
		if _, err := tx.Exec(ctx, sqlForget, ids); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, sqlFinish, ids)
	return err
}

// Renew implements [LeaseKeeper]. A lease that another relay has taken over is left alone: its
// settlement will be fenced off.
func (k *Keeper) Renew(ctx context.Context, tokens []int64) error {
	return k.Do(ctx, "renew leases", func(ctx context.Context, c *session.Conn) error {
		_, err := c.Exec(ctx, `UPDATE outbox_deliveries SET lease_until = clock_timestamp() + $3::bigint * interval '1 microsecond'
			WHERE state = 'running' AND lease_owner = $1 AND lease_token = ANY($2)`,
			k.options.Owner, tokens, k.options.Lease.Microseconds())
		return err
	})
}

var (
	_ LeaseKeeper = (*Keeper)(nil)
	_ Housekeeper = (*Keeper)(nil)
	_ Companions  = (*Keeper)(nil)
)
