package outboxsql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/sleep"
)

// DefaultLockPatience is how long [Migrate], [Partition] and [SetMode] try to lock tables that are in
// use, and wait for transactions that have to end first.
const DefaultLockPatience = 10 * time.Minute

const (
	// aloneLock is how long one attempt may make writers wait.
	aloneLock = 200 * time.Millisecond
	// alonePause is the mean pause between two attempts.
	alonePause = 500 * time.Millisecond
	// waitSay is the shortest time between two lines about a wait for the same sessions.
	waitSay = 10 * time.Second
)

// errBusy says that another change of the schema is going on.
var errBusy = errors.New("another change of the schema is going on")

// change is a change of tables in use that takes several steps.
type change struct {
	conn     DB
	schema   string
	patience time.Duration // 0 is DefaultLockPatience
	progress func(step string)
	waiting  func(line string)
}

func (c *change) say(format string, args ...any) {
	if c.progress != nil {
		c.progress(fmt.Sprintf(format, args...))
	}
}

// table returns a name of the schema for a statement.
func (c *change) table(name string) string { return pgx.Identifier{c.schema, name}.Sanitize() }

// schemaPoll is how often a change checks whether another one has ended.
const schemaPoll = 25 * time.Millisecond

// schemaKey is the advisory lock that keeps two changes of one schema apart.
const schemaKey = `($1::bigint << 32 | hashtext($2)::bigint & 4294967295)`

// lockSchema keeps two changes of one schema apart, until unlock is called. It waits for the other
// change by polling: a statement that waits has a snapshot, and an index that is built concurrently
// waits for the end of that snapshot. The session must not be in a transaction.
func (c *change) lockSchema(ctx context.Context) (unlock func(context.Context) error, err error) {
	err = c.again(ctx, func() error {
		var got bool
		err := c.conn.QueryRow(ctx, `SELECT pg_try_advisory_lock(`+schemaKey+`)`, lockSpace, c.schema).Scan(&got)
		if err != nil || got {
			return err
		}
		return errBusy
	})
	if err != nil {
		return nil, fmt.Errorf("lock the schema: %w", err)
	}

	return func(ctx context.Context) error {
		_, err := c.conn.Exec(context.WithoutCancel(ctx), `SELECT pg_advisory_unlock(`+schemaKey+`)`, lockSpace, c.schema)
		if err != nil {
			return fmt.Errorf("unlock the schema: %w", err)
		}
		return nil
	}, nil
}

// begin runs f in a transaction with the schema as search_path. lock bounds the wait for each lock,
// 0 means no bound.
func (c *change) begin(ctx context.Context, lock time.Duration, f func(tx pgx.Tx) error) error {
	// Changes committed before the lock was granted must be visible after it.
	return pgx.BeginTxFunc(ctx, c.conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		settings := fmt.Sprintf("SET LOCAL client_min_messages = warning;\nSET LOCAL row_security = off;\n"+
			"SET LOCAL search_path = %s;\nSET LOCAL statement_timeout = 0;\nSET LOCAL lock_timeout = %d;\n",
			pgx.Identifier{c.schema}.Sanitize(), lock.Milliseconds())
		_, err := tx.Exec(ctx, settings, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			return err
		}
		return f(tx)
	})
}

// tx runs statements in a transaction. lock bounds the wait for each lock, 0 means no bound.
func (c *change) tx(ctx context.Context, lock time.Duration, statements string) error {
	return c.begin(ctx, lock, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, statements, pgx.QueryExecModeSimpleProtocol)
		return err
	})
}

// lockRefused reports whether a lock was unavailable, or the transaction was in a deadlock.
func lockRefused(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "55P03" || pg.Code == "40P01")
}

// alone runs statements that lock the table exclusively, and repeats them until they get the lock.
func (c *change) alone(ctx context.Context, statements string) error {
	return c.again(ctx, func() error { return c.tx(ctx, aloneLock, statements) })
}

// again calls f, which takes locks with a bound, until it gets them or patience is exhausted.
func (c *change) again(ctx context.Context, f func() error) error {
	w := wait{change: c, began: time.Now()}
	for {
		err := f()
		busy := errors.Is(err, errBusy)
		if !busy && !lockRefused(err) {
			return err
		}

		w.tries++
		if w.tired() {
			return w.gaveUp(ctx, err, busy)
		}

		w.tell(ctx, busy)

		pause := sleep.Spread(alonePause, 0.5)
		if busy {
			pause = schemaPoll
		}
		if !sleep.For(ctx, pause) {
			return fmt.Errorf("wait for %s: %w", waitsFor(busy), context.Cause(ctx))
		}
	}
}

// wait is a wait for locks, with a pause after each try.
type wait struct {
	*change
	began time.Time
	tries int
	said  time.Time // of the last line
}

// tired reports whether patience is exhausted.
func (w *wait) tired() bool { return time.Since(w.began) > w.lasts() }

// lasts returns the patience of the change.
func (c *change) lasts() time.Duration { return cmp.Or(c.patience, DefaultLockPatience) }

func waitsFor(busy bool) string {
	if busy {
		return "another change of the schema"
	}
	return "a lock on the tables"
}

// tell reports, at intervals, the sessions that the change waits for.
func (w *wait) tell(ctx context.Context, busy bool) {
	if w.waiting != nil && time.Since(w.said) >= waitSay {
		w.said = time.Now()
		w.waiting(fmt.Sprintf("waiting for %s, try %d, in use by: %s", waitsFor(busy), w.tries, w.holders(ctx, busy)))
	}
}

// gaveUp returns the error at the end of patience.
func (w *wait) gaveUp(ctx context.Context, err error, busy bool) error {
	return fmt.Errorf("%w: waited %v for %s, %d tries, in use by: %s: end that transaction, and repeat the command",
		err, time.Since(w.began).Round(time.Second), waitsFor(busy), w.tries, w.holders(ctx, busy))
}

// holders names the sessions that use the tables, or those that change the schema, longest first.
func (c *change) holders(ctx context.Context, busy bool) string {
	const here = ` AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
	if busy {
		return c.sessions(ctx, `SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1
			AND (classid::bigint << 32 | objid::bigint) = `+schemaKey+here, lockSpace, c.schema)
	}

	return c.sessions(ctx, `SELECT pid FROM pg_locks WHERE locktype = 'relation' AND relation IN (
			SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
				WHERE n.nspname = $1 AND c.relname LIKE 'outbox\_%')`+here, c.schema)
}

// relaysAtWork returns an error that wraps [ErrRelays] and names the relays that a change of the mode would find.
func (c *change) relaysAtWork(ctx context.Context) error {
	var at bool
	err := c.conn.QueryRow(ctx, `SELECT EXISTS (`+pgschema.GuardUsers(c.schema)+` AND granted)`).Scan(&at)
	if err != nil {
		return fmt.Errorf("look for relays: %w", err)
	}
	if !at {
		return nil
	}

	return fmt.Errorf("%w (%s): stop them", ErrRelays, (&modeChange{change: *c}).programs(ctx))
}

// inUse names the sessions whose locks on the tables the change would wait for.
func (c *change) inUse(ctx context.Context) (string, error) {
	var sessions, prepared int
	err := c.conn.QueryRow(ctx, `SELECT count(DISTINCT pid) FILTER (WHERE pid <> pg_backend_pid()),
		count(DISTINCT virtualtransaction) FILTER (WHERE pid IS NULL) FROM pg_locks
		WHERE locktype = 'relation' AND granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND relation IN (
			SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
				WHERE n.nspname = $1 AND c.relname LIKE 'outbox\_%')`, c.schema).Scan(&sessions, &prepared)
	if err != nil {
		return "", fmt.Errorf("find who uses the tables: %w", err)
	}

	who := ""
	if sessions > 0 {
		who = c.holders(ctx, false)
	}
	if prepared > 0 {
		who = join(who, fmt.Sprintf("%d prepared transactions, see pg_prepared_xacts", prepared))
	}

	return who, nil
}

// sessions names the sessions whose process ids the query returns, longest first.
func (c *change) sessions(ctx context.Context, pids string, args ...any) string {
	return pgschema.Sessions(ctx, c.conn, pids, args...)
}
