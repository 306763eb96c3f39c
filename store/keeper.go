package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/wire"
)

// ownerSpace is 'ntfo' in ASCII: the upper half of the advisory lock by which
// a relay shows that it lives. The lower half is the relay's own number.
const ownerSpace = 0x6e74666f

// Keeper looks after leases and everything else that no claim finds, on one
// connection of its own. That connection holds the advisory lock by which
// other relays see that this one lives: when it breaks, they take over. Keeper
// implements dispatch.LeaseKeeper and dispatch.Housekeeper. It is safe for
// several goroutines; whoever made it calls Close.
type Keeper struct {
	connector *Connector
	options   Options

	mu    sync.Mutex // guards what follows, and with conn the one session
	conn  *pgx.Conn
	fresh bool // on this session nobody has looked for what a crash brought back
}

// NewOwner returns a number for a relay, to be used as Options.Owner. It is
// random: relays have nobody to number them, and a name or process id may
// occur twice.
func NewOwner() int64 { return ownerSpace<<32 | int64(rand.Uint32()) } //nolint:gosec // tells relays apart, hides nothing

// NewKeeper returns a keeper that connects when it is first used.
func NewKeeper(c *Connector, o Options) *Keeper { return &Keeper{connector: c, options: o} }

// Close ends the session, also after ctx has ended; the relay then counts as gone.
func (k *Keeper) Close(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closeConn(ctx)
}

func (k *Keeper) closeConn(ctx context.Context) {
	if k.conn != nil {
		Close(ctx, k.conn)
		k.conn = nil
	}
}

// do runs f on the connection, which it opens if need be. The connection is
// given up only where it is broken, left in a transaction, or with a server that
// takes no writes any more: with it goes the lock that shows life, and then
// others deliver again what this relay is delivering. For the same reason a statement that is under way comes home
// even if the caller is gone; its deadline is kept to.
func (k *Keeper) do(ctx context.Context, what string, f func(context.Context, *pgx.Conn) error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	if k.conn == nil || k.conn.IsClosed() {
		if err := k.connect(ctx); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	late := time.Now().Add(roundTripTimeout)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(late) {
		late = deadline
	}
	ctx, cancel := context.WithDeadlineCause(context.WithoutCancel(ctx), late, errors.New("the database did not answer in time"))
	defer cancel()
	if err := f(ctx, k.conn); err != nil {
		if k.conn.IsClosed() || k.conn.PgConn().TxStatus() != 'I' || isReadOnly(err) {
			k.closeConn(ctx)
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// readOnly is the SQLSTATE of a server that takes no writes: after a failover
// the old primary may keep its sessions.
const readOnly = "25006"

// isReadOnly reports whether err is the answer of such a server.
func isReadOnly(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == readOnly
}

func (k *Keeper) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, roundTripTimeout, fmt.Errorf("the database did not answer within %v", roundTripTimeout))
	defer cancel()
	conn, err := k.connector.Connect(ctx, "keeper")
	if err != nil {
		return err
	}
	k.conn, k.fresh = conn, true
	err = k.options.holdMode(ctx, k.connector, conn)
	if err == nil {
		err = k.holdOwner(ctx)
	}
	if err != nil {
		k.closeConn(ctx)
		return err
	}
	return nil
}

// holdOwner takes the lock that shows life. After a broken connection the
// server may still hold the old session for a moment; lock_timeout bounds the wait.
func (k *Keeper) holdOwner(ctx context.Context) error {
	_, err := k.conn.Exec(ctx, `SELECT pg_advisory_lock($1)`, k.options.Owner)
	if err != nil {
		return fmt.Errorf("take the lock that shows life: %w", err)
	}
	return nil
}

// Hold connects, so that the relay counts as alive before it writes a lease.
func (k *Keeper) Hold(ctx context.Context) error {
	return k.do(ctx, "hold the relay's lock", func(ctx context.Context, c *pgx.Conn) error { return c.Ping(ctx) })
}

// Finish implements dispatch.LeaseKeeper.
func (k *Keeper) Finish(ctx context.Context, done, put []dispatch.Entry) (fenced int, err error) {
	err = k.do(ctx, "settle leased deliveries", func(ctx context.Context, c *pgx.Conn) error {
		return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
			affected, err := k.finish(ctx, tx, done, put)
			fenced = len(done) + len(put) - affected
			return err
		})
	})
	return fenced, err
}

// held is the condition under which a lease is still ours. Its second line is
// written so that no index serves it: the one of running deliveries by owner has
// all leases of this relay, and the planner, who knows nothing of how many there
// are, would look through them for each of the answers.
const held = ` d.event_id = p.event_id AND d.destination = p.destination
	AND d.state || '' = 'running' AND d.lease_owner + 0 = $1 AND d.lease_token = p.token`

func (k *Keeper) finish(ctx context.Context, tx pgx.Tx, done, put []dispatch.Entry) (affected int, err error) {
	var ids []int64
	if len(done) > 0 {
		e, n, t := columns(done)
		tag, err := tx.Exec(ctx, `DELETE FROM outbox_deliveries AS d
			USING unnest($2::bigint[], $3::text[], $4::bigint[]) AS p(event_id, destination, token) WHERE`+held,
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
			classes[i], texts[i] = p.Class, wire.ErrorText(p.Err)
		}
		tag, err := tx.Exec(ctx, `UPDATE outbox_deliveries AS d SET state = p.state, attempts = p.attempts,
			available_at = clock_timestamp() + p.delay * interval '1 microsecond', updated_at = clock_timestamp(),
			error_class = coalesce(nullif(p.error_class, ''), d.error_class), last_error = coalesce(nullif(p.last_error, ''), d.last_error),
			lease_owner = NULL, lease_token = NULL, lease_until = NULL
			FROM unnest($2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::int[], $7::bigint[], $8::text[], $9::text[])
			AS p(event_id, destination, token, state, attempts, delay, error_class, last_error) WHERE`+held,
			k.options.Owner, e, n, t, states, failures, delays, classes, texts)
		if err != nil {
			return 0, err
		}
		affected += int(tag.RowsAffected())
		ids = append(ids, e...)
	}
	return affected, k.finishEvents(ctx, tx, ids)
}

func columns(entries []dispatch.Entry) (ids []int64, names []string, tokens []int64) {
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

// Renew implements dispatch.LeaseKeeper. A lease that somebody else has taken
// is left alone: its settlement will be fenced off.
func (k *Keeper) Renew(ctx context.Context, tokens []int64) error {
	return k.do(ctx, "renew leases", func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, `UPDATE outbox_deliveries SET lease_until = clock_timestamp() + $3::bigint * interval '1 microsecond'
			WHERE state = 'running' AND lease_owner = $1 AND lease_token = ANY($2)`,
			k.options.Owner, tokens, k.options.Lease.Microseconds())
		return err
	})
}

// Reroute implements dispatch.Housekeeper.
func (k *Keeper) Reroute(ctx context.Context, match func(string) bool) (n int, err error) {
	err = k.do(ctx, "look for unrouted events", func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, `WITH RECURSIVE t(type) AS (
				(SELECT event_type FROM outbox_deliveries WHERE state = 'unrouted' ORDER BY event_type LIMIT 1)
				UNION ALL
				SELECT (SELECT event_type FROM outbox_deliveries WHERE state = 'unrouted' AND event_type > t.type ORDER BY event_type LIMIT 1)
				FROM t WHERE t.type IS NOT NULL)
			SELECT type FROM t WHERE type IS NOT NULL`)
		if err != nil {
			return err
		}
		types, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		routed := []string{}
		for _, t := range types {
			if match(t) {
				routed = append(routed, t)
			}
		}
		n = len(routed)
		if n == 0 {
			return nil
		}
		_, err = c.Exec(ctx, `UPDATE outbox_deliveries SET state = 'retry', available_at = clock_timestamp(), updated_at = clock_timestamp(),
			error_class = NULL, last_error = NULL WHERE state = 'unrouted' AND event_type = ANY($1)`, routed)
		return err
	})
	return n, err
}

// Destinations returns the names for which deliveries wait to be tried again,
// skipping from name to name in the index.
func (k *Keeper) Destinations(ctx context.Context) (names []string, err error) {
	err = k.do(ctx, "look for whom deliveries wait", func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, `WITH RECURSIVE d(name) AS (
				(SELECT destination FROM outbox_deliveries WHERE state = 'retry' AND destination <> '' ORDER BY destination LIMIT 1)
				UNION ALL
				SELECT (SELECT destination FROM outbox_deliveries WHERE state = 'retry' AND destination > d.name ORDER BY destination LIMIT 1)
				FROM d WHERE d.name IS NOT NULL)
			SELECT name FROM d WHERE name IS NOT NULL`)
		if err != nil {
			return err
		}
		names, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return names, err
}

var (
	_ dispatch.LeaseKeeper = (*Keeper)(nil)
	_ dispatch.Housekeeper = (*Keeper)(nil)
)
