package listener

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// retryLock is the pause between attempts to get the lock while another relay has it. While that relay is awake,
	// the bell is silent for this one, too.
	retryLock = 100 * time.Millisecond
	// checkHeld is how often a held lock is checked.
	checkHeld = time.Second
	// queueFor bounds the wait for the lock behind writers, which hold it for microseconds: a longer wait means that
	// a relay has taken the lock.
	queueFor = 200 * time.Millisecond
	// heldIdle is how long a session with the lock may be idle before the server ends it. Its relay is frozen, or has
	// lost the connection unnoticed by the server, which behind a pooler may last for hours.
	heldIdle = 5 * checkHeld
	// bellTimeout bounds one statement.
	bellTimeout = 10 * time.Second
	// lockNotAvailable is the SQLSTATE of a lock_timeout.
	lockNotAvailable = "55P03"
)

// Bell keeps the trigger silent while the relay is awake: it holds the advisory lock that the trigger tests, on its
// own session. When that session breaks, the lock is free, and the bell rings again automatically.
type Bell struct {
	connect       Connect
	log           *slog.Logger
	wanted        chan struct{} // capacity 1: silence is requested
	rings         chan chan ring
	counts        chan chan count
	notifications chan notification

	idle time.Duration // ends an unused session after this time; 0 for never

	announce string // channel for notifying other relays of silence; empty for none
	checks   chan chan silenced
	pid      atomic.Uint32 // of the session; 0 without one

	// Used by the goroutine of Run only.
	conn *pgx.Conn
	held bool
	// foreign is the process id of the last logged session that held the lock and is not a relay.
	foreign int32
	pauses  *backoff.ExponentialBackOff // between attempts to connect
}

// note is a notification to send.
type notification struct {
	channel, payload string
	sent             chan error // capacity 1
}

type count struct {
	writers int
	err     error
}

type ring struct {
	xid uint64
	err error
}

// NewBell returns a bell; it does nothing until Run runs.
func NewBell(connect Connect, log *slog.Logger) *Bell {
	return &Bell{
		connect: connect, log: log, wanted: make(chan struct{}, 1), pauses: reconnects(),
		checks: make(chan chan silenced), rings: make(chan chan ring), counts: make(chan chan count), notifications: make(chan notification),
	}
}

// Silence requests silence and returns at once.
func (b *Bell) Silence() {
	select {
	case b.wanted <- struct{}{}:
	default:
	}
}

// Ring ends the silence and returns a transaction id. Every transaction in which the trigger was silent because of
// this bell, or of one that had requested silence, has a smaller id. The bell releases the lock first, and draws the
// id after that.
func (b *Bell) Ring(ctx context.Context) (uint64, error) {
	answer := make(chan ring, 1)
	select {
	case b.rings <- answer:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	select {
	case r := <-answer:
		return r.xid, r.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// Queued returns how many transactions of the whole server wait to ring. A transaction that notifies holds one lock,
// "database 0", until its commit is flushed.
func (b *Bell) Queued(ctx context.Context) (writers int, err error) {
	answer := make(chan count, 1)
	select {
	case b.counts <- answer:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	select {
	case c := <-answer:
		return c.writers, c.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

func (b *Bell) count(ctx context.Context) (c count) {
	c.err = b.session(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT count(*) FROM pg_locks WHERE locktype = 'object' AND NOT granted
			AND database = 0 AND classid = 'pg_catalog.pg_database'::regclass AND objid = 0`).Scan(&c.writers)
	})
	c.err = wrap("count writers that wait to ring", c.err)
	return c
}

// Notify sends a notification, even while the bell is silent: silence concerns only the trigger.
func (b *Bell) Notify(ctx context.Context, channel, payload string) error {
	n := notification{channel, payload, make(chan error, 1)}
	select {
	case b.notifications <- n:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-n.sent:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b *Bell) notify(ctx context.Context, n notification) error {
	full := false
	err := b.session(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		err := outboxsql.Notify(ctx, conn, n.channel, n.payload)
		if full = errors.Is(err, outboxsql.ErrNotifyQueue); full {
			return nil // the connection is fine
		}
		return err
	})
	if full {
		err = outboxsql.ErrNotifyQueue
	}
	return wrap("send a notification", err)
}

// Run operates the bell until ctx ends, and returns the cause.
func (b *Bell) Run(ctx context.Context) error {
	defer b.closeConn(ctx)
	retry := time.NewTimer(0)
	if !retry.Stop() {
		<-retry.C
	}
	defer retry.Stop()
	wanting := false
	for {
		var unused <-chan time.Time
		if b.idle > 0 && b.conn != nil && !wanting {
			unused = time.After(b.idle)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-unused:
			b.closeConn(ctx)
			continue
		case <-b.wanted:
			wanting = true
		case <-retry.C:
		case answer := <-b.counts:
			answer <- b.count(ctx)
			continue
		case n := <-b.notifications:
			n.sent <- b.notify(ctx, n)
			continue
		case answer := <-b.checks:
			var s silenced
			s.is, s.err = b.keptByOther(ctx)
			answer <- s
			continue
		case answer := <-b.rings:
			wanting = false
			select {
			case <-b.wanted: // requested before this call of Ring
			default:
			}
			xid, err := b.release(ctx)
			answer <- ring{xid, err}
		}
		switch {
		case !wanting:
		case b.hold(ctx):
			retry.Reset(checkHeld)
		case b.conn == nil: // no connection
			retry.Reset(b.pauses.NextBackOff())
		default:
			retry.Reset(retryLock)
		}
	}
}

// WordAwake is the payload with which a bell announces its silence.
const WordAwake = "awake"

// Sent reports whether a notification comes from the session of the bell.
func (b *Bell) Sent(from uint32) bool { return from != 0 && from == b.pid.Load() }

// hold takes the lock unless another relay has it. It then announces the silence.
func (b *Bell) hold(ctx context.Context) bool {
	was := b.held
	if !b.tryHold(ctx) {
		return false
	}
	if !was && b.announce != "" {
		_ = b.notify(ctx, notification{channel: b.announce, payload: WordAwake}) // after an error the lock is lost with the connection
	}
	return b.held
}

// tryHold takes the lock unless another relay has it.
func (b *Bell) tryHold(ctx context.Context) bool {
	if b.held {
		// The lock ends with its session, without a message.
		_ = b.session(ctx, func(ctx context.Context, c *pgx.Conn) error { return c.Ping(ctx) })
		if b.held {
			return true
		}
	}
	err := b.session(ctx, func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, `SELECT CASE WHEN pg_try_advisory_lock(`+bellKey+`) THEN `+limitIdle+` ELSE false END`, heldIdle.String()).Scan(&b.held)
	})
	if err != nil || b.held {
		return b.held
	}
	// Writers test the lock by taking it for a moment, and under load one of them always has it: an attempt without
	// waiting never succeeds, and one that waits succeeds at once. Only a relay holds the lock for long, and waiting
	// for a relay is useless.
	relay, err := b.keptByOther(ctx)
	if err != nil || relay {
		return false
	}
	err = b.session(ctx, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, `SELECT CASE WHEN pg_advisory_lock(`+bellKey+`)::text IS NOT NULL THEN `+limitIdle+` END`, heldIdle.String())
		b.held = err == nil
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == lockNotAvailable {
			return nil
		}
		return err
	})
	return err == nil && b.held
}

// silenced is the result of [Bell.Silenced].
type silenced struct {
	is  bool
	err error
}

// Silenced reports whether another relay keeps the bell silent.
func (b *Bell) Silenced(ctx context.Context) (bool, error) {
	answer := make(chan silenced, 1)
	select {
	case b.checks <- answer:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	select {
	case s := <-answer:
		return s.is, s.err
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// CloseIdle makes the bell end its session after that time without the lock and without work; it opens a new one when
// needed. Call it before Run.
func (b *Bell) CloseIdle(after time.Duration) { b.idle = after }

// Announce sets the channel on which the bell notifies other relays of its silence, because they deliver events that
// this relay does not read. Call it before Run.
func (b *Bell) Announce(channel string) { b.announce = channel }

// keptByOther reports whether another session holds the lock. A session that is not a relay is logged once: any role
// that may connect can take the lock.
func (b *Bell) keptByOther(ctx context.Context) (kept bool, err error) {
	var pid int32
	var user, application string
	err = b.session(ctx, func(ctx context.Context, c *pgx.Conn) error {
		err := c.QueryRow(ctx, `SELECT coalesce(l.pid, 0), coalesce(a.usename, ''), coalesce(a.application_name, '')
			FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
			WHERE l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.objsubid = 1
			AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid() AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
			AND l.classid = ((`+bellKey+`) >> 32)::oid AND l.objid = ((`+bellKey+`) & 4294967295)::oid`).Scan(&pid, &user, &application)
		kept = err == nil
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	if kept && !strings.HasPrefix(application, "notifyd/") && b.foreign != pid {
		b.foreign = pid
		b.log.WarnContext(ctx, "a session that is not a relay keeps the bell silent",
			"pid", pid, "user", user, "application_name", application, "cure", "run notifyd doctor")
	}
	return kept, wrap("check whether another relay keeps the bell silent", err)
}

// bellKey is the key of the lock in SQL. The search_path leads to the table.
const bellKey = `1853122162::bigint << 32 | 'outbox_events'::regclass::oid::bigint`

// limitIdle sets how long the session may be idle, as SQL with one parameter. Without the lock the session has no
// limit: a quiet night must not end the bell's session.
const limitIdle = `set_config('idle_session_timeout', $1, false) IS NOT NULL`

// release releases the lock and draws a transaction id, in two statements: one statement could draw the id first.
func (b *Bell) release(ctx context.Context) (xid uint64, err error) {
	if !b.held {
		_, _ = b.keptByOther(ctx) // for its log: no one else checks while the relay sleeps
	}
	err = b.session(ctx, func(ctx context.Context, c *pgx.Conn) error {
		if b.held {
			if _, err := c.Exec(ctx, `SELECT pg_advisory_unlock(`+bellKey+`), `+limitIdle, "0"); err != nil {
				return err
			}
			b.held = false
		}
		return c.QueryRow(ctx, `SELECT pg_current_xact_id()::text::bigint`).Scan(&xid)
	})
	return xid, wrap("release the bell", err)
}

// session runs f on the connection. It opens the connection if necessary, and closes it after an error.
func (b *Bell) session(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, bellTimeout)
	defer cancel()
	if b.conn == nil || b.conn.IsClosed() {
		b.held = false
		conn, err := b.connect(ctx)
		if err != nil {
			b.log.DebugContext(ctx, "no connection for the bell", "err", err)
			return err
		}
		b.conn = conn
		b.pid.Store(conn.PgConn().PID())
		b.pauses.Reset()
		if _, err := conn.Exec(ctx, `SELECT set_config('lock_timeout', $1, false)`, queueFor.String()); err != nil {
			b.closeConn(ctx)
			return err
		}
	}
	err := f(ctx, b.conn)
	if err != nil {
		b.log.DebugContext(ctx, "the bell's connection is closed", "err", err)
		b.closeConn(ctx)
	}
	return err
}

// closeConn ends the session, and so the silence.
func (b *Bell) closeConn(ctx context.Context) {
	b.held = false
	if b.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = b.conn.Close(ctx) // the socket is closed either way
	b.conn = nil
	b.pid.Store(0)
}

// closeTimeout bounds the orderly end of the connection.
const closeTimeout = time.Second
