package listener

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/backoff"
	"github.com/notifyd/notifyd/internal/pgschema"
)

const (
	// retryLock is the pause between attempts to get the lock while another relay has it. While that relay polls,
	// the trigger is suppressed for this one, too.
	retryLock = 100 * time.Millisecond
	// checkHeld is how often a held lock is checked.
	checkHeld = time.Second
	// queueFor bounds the wait for the lock behind writers, which hold it for microseconds: a longer wait means that
	// a relay has taken the lock.
	queueFor = 200 * time.Millisecond
	// heldIdle is how long a session with the lock may be idle before the server ends it. Its relay is frozen, or has
	// lost the connection unnoticed by the server, which behind a pooler may last for hours.
	heldIdle = 5 * checkHeld
	// triggerTimeout bounds one statement.
	triggerTimeout = 10 * time.Second
	// lockNotAvailable is the SQLSTATE of a lock_timeout.
	lockNotAvailable = "55P03"
)

// Trigger suppresses the notify trigger while the relay polls: Trigger holds the advisory lock that the trigger tests, on
// its own session. When that session breaks, the lock is free, and the trigger notifies again.
type Trigger struct {
	connect       Connect
	log           *slog.Logger
	wanted        chan struct{} // capacity 1: suppression is requested
	releases      chan chan released
	counts        chan chan count
	notifications chan notification

	idle time.Duration // ends an unused session after this time; 0 for never

	announce string // channel for notifying other relays of the suppression; empty for none
	checks   chan chan suppressed
	pid      atomic.Uint32 // of the session; 0 without one

	// Used by the goroutine of Run only.
	conn *pgx.Conn
	held bool
	// foreign is the process id of the last logged session that held the lock and is not a relay.
	foreign int32
	pauses  backoff.Pauses // between attempts to connect
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

type released struct {
	xid uint64
	err error
}

// NewTrigger returns a Trigger that does nothing until Run runs.
func NewTrigger(connect Connect, log *slog.Logger) *Trigger {
	return &Trigger{
		connect:       connect,
		log:           log,
		wanted:        make(chan struct{}, 1),
		pauses:        reconnects(),
		checks:        make(chan chan suppressed),
		releases:      make(chan chan released),
		counts:        make(chan chan count),
		notifications: make(chan notification),
	}
}

// Suppress requests the suppression of the notify trigger, and returns at once.
func (t *Trigger) Suppress() {
	select {
	case t.wanted <- struct{}{}:
	default:
	}
}

// Release releases the trigger and returns a transaction id. Every transaction that did not notify because of this
// Trigger has a smaller id: Release frees the lock first, and draws the id after that.
func (t *Trigger) Release(ctx context.Context) (uint64, error) {
	answer := make(chan released, 1)
	select {
	case t.releases <- answer:
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

// Queued returns how many transactions of the whole server wait to notify. A transaction that notifies holds one lock,
// "database 0", until its commit is flushed.
func (t *Trigger) Queued(ctx context.Context) (writers int, err error) {
	answer := make(chan count, 1)
	select {
	case t.counts <- answer:
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

func (t *Trigger) count(ctx context.Context) (c count) {
	c.err = t.session(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT count(*) FROM pg_locks WHERE locktype = 'object' AND NOT granted
			AND database = 0 AND classid = 'pg_catalog.pg_database'::regclass AND objid = 0`).Scan(&c.writers)
	})
	c.err = wrap("count writers that wait to notify", c.err)
	return c
}

// Notify sends a notification, also while the trigger is suppressed.
func (t *Trigger) Notify(ctx context.Context, channel, payload string) error {
	n := notification{channel, payload, make(chan error, 1)}
	select {
	case t.notifications <- n:
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

func (t *Trigger) notify(ctx context.Context, n notification) error {
	full := false
	err := t.session(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		err := pgschema.Notify(ctx, conn, n.channel, n.payload)
		full = errors.Is(err, pgschema.ErrNotifyQueue)
		if full {
			return nil // the connection is fine
		}
		return err
	})
	if full {
		err = pgschema.ErrNotifyQueue
	}

	return wrap("send a notification", err)
}

// Run serves the other methods until ctx ends, and returns the cause.
func (t *Trigger) Run(ctx context.Context) error {
	defer t.closeConn(ctx)

	retry := time.NewTimer(0)
	if !retry.Stop() {
		<-retry.C
	}
	defer retry.Stop()

	wanting := false
	for {
		var unused <-chan time.Time
		if t.idle > 0 && t.conn != nil && !wanting {
			unused = time.After(t.idle)
		}

		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-unused:
			t.closeConn(ctx)
			continue
		case <-t.wanted:
			wanting = true
		case <-retry.C:
		case answer := <-t.counts:
			answer <- t.count(ctx)
			continue
		case n := <-t.notifications:
			n.sent <- t.notify(ctx, n)
			continue
		case answer := <-t.checks:
			var s suppressed
			s.yes, s.err = t.keptByOther(ctx)
			answer <- s
			continue

		case answer := <-t.releases:
			wanting = false

			select {
			case <-t.wanted: // requested before this call of Release
			default:
			}

			xid, err := t.unlock(ctx)
			answer <- released{xid, err}
		}

		switch {
		case !wanting:
		case t.hold(ctx):
			retry.Reset(checkHeld)
		case t.conn == nil: // no connection
			retry.Reset(t.pauses.Next())
		default:
			retry.Reset(retryLock)
		}
	}
}

// Sent reports whether a notification comes from the session of the Trigger.
func (t *Trigger) Sent(from uint32) bool { return from != 0 && from == t.pid.Load() }

// hold takes the lock unless another relay has it. It then announces the suppression.
func (t *Trigger) hold(ctx context.Context) bool {
	was := t.held
	if !t.tryHold(ctx) {
		return false
	}
	if !was && t.announce != "" {
		_ = t.notify(ctx, notification{channel: t.announce, payload: pgschema.WordPolling}) // after an error the lock is lost with the connection
	}

	return t.held
}

// tryHold takes the lock unless another relay has it.
func (t *Trigger) tryHold(ctx context.Context) bool {
	if t.held {
		// The lock ends with its session, without a message.
		_ = t.session(ctx, func(ctx context.Context, c *pgx.Conn) error { return c.Ping(ctx) })
		if t.held {
			return true
		}
	}

	err := t.session(ctx, func(ctx context.Context, c *pgx.Conn) error {
		try := `SELECT CASE WHEN pg_try_advisory_lock(` + lockKey + `) THEN ` + limitIdle + ` ELSE false END`
		return c.QueryRow(ctx, try, heldIdle.String()).Scan(&t.held)
	})
	if err != nil || t.held {
		return t.held
	}

	// Writers test the lock by taking it for a moment, and under load one of them always has it: an attempt without
	// waiting never succeeds, and one that waits succeeds at once. Only a relay holds the lock for long, and waiting
	// for a relay is useless.
	relay, err := t.keptByOther(ctx)
	if err != nil || relay {
		return false
	}

	err = t.session(ctx, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, `SELECT CASE WHEN pg_advisory_lock(`+lockKey+`)::text IS NOT NULL THEN `+limitIdle+` END`, heldIdle.String())
		t.held = err == nil
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == lockNotAvailable {
			return nil
		}
		return err
	})

	return err == nil && t.held
}

// suppressed is the result of [Trigger.Suppressed].
type suppressed struct {
	yes bool
	err error
}

// Suppressed reports whether another relay suppresses the trigger.
func (t *Trigger) Suppressed(ctx context.Context) (bool, error) {
	answer := make(chan suppressed, 1)
	select {
	case t.checks <- answer:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}

	select {
	case s := <-answer:
		return s.yes, s.err
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// CloseIdle makes the Trigger end its session after that time without the lock and without work; it opens a new one when
// needed. Call it before Run.
func (t *Trigger) CloseIdle(after time.Duration) { t.idle = after }

// Announce sets the channel on which the Trigger tells other relays of the suppression, because they deliver events that
// this relay does not read. Call it before Run.
func (t *Trigger) Announce(channel string) { t.announce = channel }

// keptByOther reports whether another session holds the lock. A session that is not a relay is logged once: any role
// that may connect can take the lock.
func (t *Trigger) keptByOther(ctx context.Context) (kept bool, err error) {
	var by holder
	err = t.session(ctx, func(ctx context.Context, c *pgx.Conn) (err error) {
		by, kept, err = holderOf(ctx, c, `l.objsubid = 1 AND l.classid = ((`+lockKey+`) >> 32)::oid
			AND l.objid = ((`+lockKey+`) & 4294967295)::oid`)
		return err
	})

	if kept && !by.relay && t.foreign != by.pid {
		t.foreign = by.pid
		t.log.WarnContext(ctx, "session that is not a relay suppresses the trigger",
			"pid", by.pid, "user", by.user, "application_name", by.application, "cure", "run notifyd doctor")
	}

	return kept, wrap("check whether another relay suppresses the trigger", err)
}

// holder is a session that holds an advisory lock exclusively.
type holder struct {
	pid               int32
	user, application string
	// relay reports a relay: it has the name of one, which any role can set, and its role may add deliveries.
	relay bool
}

// holderOf returns another session that holds an advisory lock exclusively; condition selects the lock. It ignores a
// session that has just ended, which pg_stat_activity no longer lists. A prepared transaction counts, with the pid 0.
func holderOf(ctx context.Context, conn *pgx.Conn, condition string, args ...any) (by holder, found bool, err error) {
	err = conn.QueryRow(ctx, `SELECT coalesce(l.pid, 0), coalesce(a.usename, ''), coalesce(a.application_name, ''),
			coalesce(a.application_name LIKE 'notifyd/%'
				AND has_table_privilege(a.usesysid, to_regclass('outbox_deliveries')::oid, 'INSERT'), false)
		FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
		WHERE l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
		AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND (l.pid IS NULL OR a.pid IS NOT NULL)
		AND `+condition, args...).Scan(&by.pid, &by.user, &by.application, &by.relay)
	if errors.Is(err, pgx.ErrNoRows) {
		return by, false, nil
	}

	return by, err == nil, wrap("find the holder of a lock", err)
}

// lockKey is the key of the lock in SQL. The search_path leads to the table.
const lockKey = `1853122162::bigint << 32 | 'outbox_events'::regclass::oid::bigint`

// limitIdle sets how long the session may be idle, as SQL with one parameter. Without the lock the session has no
// limit: a quiet night must not end it.
const limitIdle = `set_config('idle_session_timeout', $1, false) IS NOT NULL`

// unlock releases the lock and draws a transaction id, in two statements: one statement could draw the id first.
func (t *Trigger) unlock(ctx context.Context) (xid uint64, err error) {
	if !t.held {
		_, _ = t.keptByOther(ctx) // for its log: no one else checks while the relay is listening
	}

	err = t.session(ctx, func(ctx context.Context, c *pgx.Conn) error {
		if t.held {
			if _, err := c.Exec(ctx, `SELECT pg_advisory_unlock(`+lockKey+`), `+limitIdle, "0"); err != nil {
				return err
			}
			t.held = false
		}
		return c.QueryRow(ctx, `SELECT pg_current_xact_id()::text::bigint`).Scan(&xid)
	})

	return xid, wrap("release the trigger", err)
}

// session runs f on the connection. It opens the connection if necessary, and closes it after an error.
func (t *Trigger) session(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, triggerTimeout)
	defer cancel()

	if t.conn == nil || t.conn.IsClosed() {
		t.held = false
		conn, err := t.connect(ctx)
		if err != nil {
			t.log.DebugContext(ctx, "no connection for the notify lock", "err", err)
			return err
		}

		t.conn = conn
		t.pid.Store(conn.PgConn().PID())
		t.pauses.Reset()

		if _, err := conn.Exec(ctx, `SELECT set_config('lock_timeout', $1, false)`, queueFor.String()); err != nil {
			t.closeConn(ctx)
			return err
		}
	}

	err := f(ctx, t.conn)
	if err != nil {
		t.log.DebugContext(ctx, "connection of the notify lock closed", "err", err)
		t.closeConn(ctx)
	}

	return err
}

// closeConn ends the session, and so the suppression.
func (t *Trigger) closeConn(ctx context.Context) {
	t.held = false

	if t.conn == nil {
		return
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()

	_ = t.conn.Close(ctx) // the socket is closed either way
	t.conn = nil
	t.pid.Store(0)
}

// closeTimeout bounds the orderly end of the connection.
const closeTimeout = time.Second
