package outboxsql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/sleep"
)

// ErrStream is returned if outbox_events cannot be read as a stream, because events would be
// skipped or repeated. The error names the remedy.
var ErrStream = pgschema.ErrStream

// ErrRelays is returned by [SetMode] while relays are connected to the table.
var ErrRelays = errors.New("relays are at work on outbox_events")

// ErrPositions is returned by [SetMode] if the destinations of a stream have different positions
// and their event types are unknown.
var ErrPositions = errors.New("the destinations of the stream have different positions")

// ErrAbandoned is returned by [SetMode] if a stream that becomes a queue has destinations that are not known, for
// which events wait: a queue asks the routes who gets an event, and these would never get theirs.
var ErrAbandoned = errors.New("events wait for destinations that are not configured")

const (
	// modeBatch is how many events one transaction of [SetMode] changes: it takes some hundredths
	// of a second.
	modeBatch = 5000
	// modeSay is the shortest time between two lines of progress of one step.
	modeSay = 5 * time.Second
	// relaysEnd is how long relays may take to be gone: the server ends the sessions of one that has just
	// been stopped a moment later, and the leases of one that was killed expire. relaysLook is the time between two looks.
	relaysEnd, relaysLook = 2 * time.Second, 50 * time.Millisecond
	// maxOpen is the largest number of open ranges that a stream begins with. Each write of a
	// position writes all of its ranges.
	maxOpen = 4000
)

// ModeOptions configure [SetMode]. The zero value is valid if no events wait, and for the change
// from a queue to a stream.
type ModeOptions struct {
	// LockPatience is how long to try to lock the table exclusively for a moment, while writers use
	// it, and to wait for writers' transactions that have to end first; 0 is [DefaultLockPatience].
	LockPatience time.Duration
	// Progress, if set, is called with the next step, and with its progress.
	Progress func(step string)
	// Waiting, if set, is called now and then with the sessions whose locks SetMode waits for.
	Waiting func(line string)
	// Route returns the destinations of an event type by the current routes. It is needed for a
	// stream that becomes a queue, if some destinations have received an event and others have not.
	// Nil: unknown.
	Route func(eventType string) []string
	// Known reports whether a destination is configured. It is needed for a stream that becomes a queue, together with
	// Route. Nil: all are.
	Known func(destination string) bool
	// Drop gives up the events that wait for destinations that are not known. Without it they end the change.
	Drop bool
	// Unordered reports whether a destination of a stream gets the events of one aggregate in any
	// order. Nil: none does.
	Unordered func(destination string) bool
}

// SetMode makes outbox_events a queue or a stream, after [Migrate]. It does nothing if the table
// has that mode already. Relays must be stopped: otherwise the error wraps [ErrRelays] and names
// them. Writers continue, on tables of any size. Waiting deliveries stay waiting, finished ones
// stay finished. An interrupted call may be repeated, and continues; until then a stream that was
// to become a queue is neither, and relays wait. The error wraps [ErrStream] if the table cannot be
// a stream, [ErrPositions] if Route is needed, and [ErrAbandoned] if Drop is.
func SetMode(ctx context.Context, conn *pgx.Conn, schema string, mode Mode, o ModeOptions) (err error) {
	if err := errors.Join(pgschema.Validate(schema), mode.Validate()); err != nil {
		return err
	}
	if err := Check(ctx, conn, schema); err != nil {
		return err
	}
	if err := direct(ctx, conn); err != nil {
		return err
	}

	m := &modeChange{
		change:  change{conn: conn, schema: schema, patience: o.LockPatience, progress: o.Progress, waiting: o.Waiting},
		options: o,
		said:    time.Now(),
	}

	unlock, err := m.lockSchema(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock(ctx)) }()

	if err := m.run(ctx, mode); err != nil {
		return fmt.Errorf("make outbox_events of schema %q a %s: %w", schema, mode, err)
	}

	return nil
}

// direct returns an error for a connection through a pooler, which may give the session to another
// client, together with the locks that keep relays away.
func direct(ctx context.Context, conn *pgx.Conn) error {
	var pid int64
	if err := conn.QueryRow(ctx, `SELECT pg_backend_pid()`, pgx.QueryExecModeExec).Scan(&pid); err != nil {
		return fmt.Errorf("find the answering server process: %w", err)
	}
	if uint32(pid) != conn.PgConn().PID() { //nolint:gosec // a process id
		return errors.New("the connection leads through a pooler: connect to PostgreSQL directly to change the mode")
	}

	return nil
}

// modeChange is one call of SetMode.
type modeChange struct {
	change
	options ModeOptions
	said    time.Time // time of the last line about the current step
}

func (m *modeChange) run(ctx context.Context, to Mode) error {
	row, err := pgschema.ReadMode(ctx, m.conn, m.schema)
	if err != nil {
		return err
	}

	mode := Mode(row.Mode)
	becoming := Mode(row.Becoming)
	switch {
	case becoming == "" && mode == to:
		return nil
	case becoming != "" && becoming != to:
		return fmt.Errorf("%w: its change to a %s was interrupted: finish it first with `notifyd migrate --mode %[2]s`",
			ErrModeChanging, becoming)
	}

	if to == ModeStream {
		if err := pgschema.CheckStream(ctx, m.conn, m.schema); err != nil {
			return err
		}
	}

	release, err := m.exclude(ctx)
	if err != nil {
		return err
	}

	if to == ModeStream {
		err = m.toStream(ctx)
	} else {
		err = m.toQueue(ctx)
	}

	return errors.Join(err, release(ctx))
}

// exclude takes the guard of the mode exclusively, so that no relay reads the table until release
// is called.
func (m *modeChange) exclude(ctx context.Context) (release func(context.Context) error, err error) {
	// Behind a pooler no relay has a session, and the guard is free though it runs: looking first does not disturb it.
	if err := m.expire(ctx, `pid = 0`); err != nil {
		return nil, err
	}

	for deadline := time.Now().Add(relaysEnd); ; {
		var got bool
		err := m.conn.QueryRow(ctx, `SELECT pg_try_advisory_lock(`+pgschema.ModeGuard(m.schema)+`)`).Scan(&got)
		if err != nil {
			return nil, fmt.Errorf("keep relays away: %w", err)
		}
		if got {
			break
		}

		if time.Now().Before(deadline) {
			if !sleep.For(ctx, relaysLook) {
				return nil, context.Cause(ctx)
			}
			continue
		}

		return nil, fmt.Errorf("%w (%s): stop them, and repeat the command", ErrRelays, m.programs(ctx))
	}

	release = func(ctx context.Context) error {
		_, err := m.conn.Exec(context.WithoutCancel(ctx), `SELECT pg_advisory_unlock(`+pgschema.ModeGuard(m.schema)+`)`)
		if err != nil {
			return fmt.Errorf("let relays in again: %w", err)
		}
		return nil
	}

	if err := m.expire(ctx, `pid = 0 OR alive_until > clock_timestamp()`); err != nil {
		return nil, errors.Join(err, release(ctx))
	}

	return release, nil
}

// expire waits until the leases of the selected relays have expired: by the server's clock, or because no renewal came
// during the wait. It removes the rows of relays without renewals, so a relay that resumes notices the loss.
func (m *modeChange) expire(ctx context.Context, which string) error {
	members := m.table("outbox_members")
	seen := func() (now string, err error) {
		err = m.conn.QueryRow(ctx, `SELECT coalesce(string_agg(owner || ' ' || renewals, ',' ORDER BY owner), '')
			FROM `+members+` WHERE `+which).Scan(&now)
		if err != nil {
			return "", fmt.Errorf("find the leases of relays: %w", err)
		}
		return now, nil
	}

	before, err := seen()
	if err != nil || before == "" {
		return err
	}

	for deadline := time.Now().Add(relaysEnd); time.Now().Before(deadline); {
		if !sleep.For(ctx, relaysLook) {
			return context.Cause(ctx)
		}
		if now, err := seen(); err != nil || now == "" {
			return err
		}
	}

	// Compare the observed renewals: the DELETE waits for a renewal in progress, and then leaves its row.
	_, err = m.conn.Exec(ctx, `DELETE FROM `+members+`
		WHERE owner || ' ' || renewals = ANY(string_to_array($1, ','))`, before)
	if err != nil {
		return fmt.Errorf("remove relays that are gone: %w", err)
	}
	if now, err := seen(); err != nil || now == "" {
		return err
	}

	return fmt.Errorf("%w (%s): stop them, and repeat the command", ErrRelays, m.relays(ctx, which))
}

// programs names the live relays of the table by host and process. Of relays that have not described themselves it names the
// sessions.
func (m *modeChange) programs(ctx context.Context) string {
	var who string
	err := m.conn.QueryRow(ctx, `SELECT coalesce(string_agg(DISTINCT format('%s, process %s', host, process), '; '), '') FROM (
		SELECT host, process FROM `+m.table("outbox_relays")+` AS r WHERE EXISTS
			(SELECT FROM `+m.table("outbox_members")+` AS a WHERE a.owner = r.owner)
			OR EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted
				AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
				AND classid::bigint << 32 | objid::bigint = r.owner)) AS live`).Scan(&who)
	if err == nil && who != "" {
		return who
	}

	return m.sessions(ctx, pgschema.GuardUsers(m.schema)+` AND granted`)
}

// relays names the relays that a condition on outbox_members selects.
func (m *modeChange) relays(ctx context.Context, which string) (who string) {
	err := m.conn.QueryRow(ctx, `SELECT coalesce(string_agg(CASE WHEN r.owner IS NULL THEN format('session %s', m.pid)
			ELSE format('%s, process %s', r.host, r.process) END, '; ' ORDER BY m.owner), 'gone meanwhile')
		FROM (SELECT owner, pid FROM `+m.table("outbox_members")+`
			WHERE `+which+` ORDER BY owner LIMIT $1) AS m LEFT JOIN `+m.table("outbox_relays")+` AS r ON r.owner = m.owner`,
		pgschema.NamedSessions).Scan(&who)
	if err != nil {
		return "unknown: " + err.Error()
	}
	return who
}

// step runs f in a transaction of some hundredths of a second, whose statements find events by
// index even if PostgreSQL has no statistics of the table.
func (m *modeChange) step(ctx context.Context, f func(tx pgx.Tx) error) error {
	return m.again(ctx, func() error {
		return m.begin(ctx, aloneLock, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_hashjoin = off;
				SET LOCAL enable_mergejoin = off; SET LOCAL jit = off`, pgx.QueryExecModeSimpleProtocol)
			if err != nil {
				return err
			}
			return f(tx)
		})
	})
}

// count reports the progress of a long step, now and then.
func (m *modeChange) count(format string, n int64) {
	if time.Since(m.said) >= modeSay {
		m.said = time.Now()
		m.say(format, n)
	}
}
