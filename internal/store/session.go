package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/session"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// ownerSpace is 'ntfo' in ASCII: the upper half of the advisory lock by which a relay proves that it is alive. The
// lower half is the relay's number.
const ownerSpace = 0x6e74666f

// Session holds the relay's session: its connection has the advisory lock that shows other relays that this one is
// alive. When the connection breaks, they take over. Several goroutines may use a Session; the caller of NewSession or
// NewBorrower closes it.
type Session struct {
	connector *Connector
	options   SessionOptions
	lender    Lender // nil for a Session with its own connection

	mu   sync.Mutex // guards conn, and serializes its use
	conn *session.Conn
}

// SessionOptions configures a [Session].
type SessionOptions struct {
	// Owner is the number of the relay, see [NewOwner]; 0 for a Session that does not prove life.
	Owner int64
	// Mode is the required mode of the table; empty is a queue.
	Mode outboxsql.Mode
	// Program describes the relay's process; it is not stored if Process is 0.
	Program Program
	// Refused, if set, is called if the table has the other mode, with an error that wraps outboxsql.ErrMode: this
	// relay can no longer work there. It must not block.
	Refused func(error)
}

// NewOwner returns a number for a relay, for SessionOptions.Owner. It is random: no authority numbers relays, and a
// name or process id may occur twice.
func NewOwner() int64 { return ownerSpace<<32 | int64(rand.Uint32()) } //nolint:gosec // distinguishes relays, hides nothing

// NewSession returns a Session that connects on first use.
func NewSession(c *Connector, o SessionOptions) *Session { return &Session{connector: c, options: o} }

// Lender lends a connection for one use at a time.
type Lender interface {
	// Lend calls f with a connection. f must not leave the connection in a transaction.
	Lend(ctx context.Context, f func(context.Context, *session.Conn) error) error
	// Close closes the connections. It can be called repeatedly.
	Close(ctx context.Context)
}

// NewBorrower returns a Session that borrows its connection, for a stream: another session proves that the relay is
// alive, and the remaining work is rare and short.
func NewBorrower(from Lender, owner int64) *Session {
	return &Session{lender: from, options: SessionOptions{Owner: owner, Mode: outboxsql.ModeStream}}
}

// Close ends the session, even if ctx has ended; the relay then counts as dead.
func (k *Session) Close(ctx context.Context) {
	if k.lender != nil {
		k.lender.Close(ctx)
		return
	}

	k.mu.Lock()
	defer k.mu.Unlock()

	k.closeConn(ctx)
}

func (k *Session) closeConn(ctx context.Context) {
	if k.conn != nil {
		Close(ctx, k.conn.Conn)
		k.conn = nil
	}
}

// Do runs f on the connection, and opens the connection if necessary. It closes the connection only if Spoiled. The
// connection has the lock that proves life: without it other relays repeat this relay's deliveries. For the same
// reason a running statement finishes even if the caller's context is cancelled; the deadline still applies.
func (k *Session) Do(ctx context.Context, what string, f func(context.Context, *session.Conn) error) error {
	if k.lender != nil {
		if err := k.lender.Lend(ctx, f); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	}

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

	late := time.Now().Add(RoundTripTimeout)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(late) {
		late = deadline
	}

	ctx, cancel := context.WithDeadlineCause(context.WithoutCancel(ctx), late, errors.New("the database did not answer in time"))
	defer cancel()

	if err := f(ctx, k.conn); err != nil {
		if Spoiled(k.conn.Conn, err) {
			k.closeConn(ctx)
		}
		return fmt.Errorf("%s: %w", what, err)
	}

	return nil
}

// Spoiled reports whether a connection must be closed after an error: it is broken, left in a transaction, or leads
// to a server that has become read-only.
func Spoiled(c *pgx.Conn, err error) bool {
	return c.IsClosed() || c.PgConn().TxStatus() != 'I' || isReadOnly(err)
}

// readOnly is the SQLSTATE of a read-only server: after a failover the old primary may still have its sessions.
const readOnly = "25006"

// isReadOnly reports whether err comes from a read-only server.
func isReadOnly(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == readOnly
}

func (k *Session) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, RoundTripTimeout, errNoAnswer)
	defer cancel()

	open := k.connector.Open
	mode := cmp.Or(k.options.Mode, outboxsql.ModeQueue)
	if k.options.Owner != 0 || mode == outboxsql.ModeQueue {
		open = k.connector.direct
	}

	conn, err := open(ctx, "maintenance")
	if err != nil {
		return err
	}

	k.conn = conn
	if conn.IsShared() {
		conn.Require(k.connector.RequiresMode(mode))
		return nil
	}

	err = k.connector.HoldMode(ctx, conn.Conn, mode, k.options.Refused)
	if err == nil && k.options.Owner != 0 {
		err = ShowLife(ctx, conn, k.connector.Schema, k.options.Owner, k.options.Program)
	}

	if err != nil {
		k.closeConn(ctx)
		return err
	}

	return nil
}

// ShowLife takes the lock that proves life, and calls [Introduce]. The lock is shared, so that it is available at
// once. The server may still have an earlier session of this relay: for a moment after a broken connection, and
// behind a pooler for hours. Late statements of such a session do no harm: each has conditions on its changes, and
// lease tokens are unique.
func ShowLife(ctx context.Context, conn outboxsql.DB, schema string, owner int64, p Program) error {
	var held bool
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock_shared($1)`, owner).Scan(&held); err != nil {
		return fmt.Errorf("take the lock that proves life: %w", err)
	}
	if !held {
		return fmt.Errorf("take the lock that proves life: %w", foreign(ctx, conn, schema, LockLife))
	}

	return Introduce(ctx, conn, owner, p)
}

// Hold connects, so that the relay counts as alive before it writes a lease.
func (k *Session) Hold(ctx context.Context) error {
	return k.Do(ctx, "hold the relay's lock", func(ctx context.Context, c *session.Conn) error { return c.Ping(ctx) })
}

// Destinations returns the names with deliveries to retry. The query skips from name to name in the index.
func (k *Session) Destinations(ctx context.Context) (names []string, err error) {
	err = k.Do(ctx, "list destinations with waiting deliveries", func(ctx context.Context, c *session.Conn) error {
		rows, err := c.Query(ctx, `WITH RECURSIVE d(name) AS (
				(SELECT destination FROM outbox_deliveries WHERE state = 'retry' AND destination <> '' ORDER BY destination LIMIT 1)
				UNION ALL
				SELECT (SELECT destination FROM outbox_deliveries WHERE state = 'retry' AND destination > d.name
					ORDER BY destination LIMIT 1)
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
