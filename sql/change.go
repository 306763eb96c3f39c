package outboxsql

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DefaultLockPatience is how long [Partition] and [SetMode] try to lock the table exclusively, and
// wait for transactions that have to end first.
const DefaultLockPatience = 10 * time.Minute

const (
	// aloneLock is how long one attempt may make writers wait.
	aloneLock = 200 * time.Millisecond
	// alonePause is the mean pause between two attempts.
	alonePause = 500 * time.Millisecond
)

// change is a change of tables in use that takes several steps.
type change struct {
	conn     *pgx.Conn
	schema   string
	patience time.Duration // 0 is DefaultLockPatience
	progress func(step string)
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

// lockSchema keeps two changes of one schema apart, until unlock is called. It waits for the other
// change by polling: a statement that waits has a snapshot, and an index that is built concurrently
// waits for the end of that snapshot. The session must not be in a transaction.
func lockSchema(ctx context.Context, conn *pgx.Conn, schema string) (unlock func(context.Context) error, err error) {
	const key = `$1::bigint << 32 | hashtext($2)::bigint & 4294967295`
	for got := false; !got; {
		if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock(`+key+`)`, lockSpace, schema).Scan(&got); err != nil {
			return nil, fmt.Errorf("lock the schema: %w", err)
		}
		if !got && !rest(ctx, schemaPoll) {
			return nil, fmt.Errorf("lock the schema: %w", context.Cause(ctx))
		}
	}
	return func(ctx context.Context) error {
		if _, err := conn.Exec(context.WithoutCancel(ctx), `SELECT pg_advisory_unlock(`+key+`)`, lockSpace, schema); err != nil {
			return fmt.Errorf("unlock the schema: %w", err)
		}
		return nil
	}, nil
}

// begin runs f in a transaction with the schema as search_path. lock bounds the wait for each lock,
// 0 is no bound.
func (c *change) begin(ctx context.Context, lock time.Duration, f func(tx pgx.Tx) error) error {
	// Changes committed before the lock was granted must be visible after it.
	return pgx.BeginTxFunc(ctx, c.conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL client_min_messages = warning;\nSET LOCAL search_path = %s;\n"+
			"SET LOCAL statement_timeout = 0;\nSET LOCAL lock_timeout = %d;\n", pgx.Identifier{c.schema}.Sanitize(), lock.Milliseconds()),
			pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			return err
		}
		return f(tx)
	})
}

// tx runs statements in a transaction. lock bounds the wait for each lock, 0 is no bound.
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
	for began := time.Now(); ; {
		err := f()
		if !lockRefused(err) {
			return err
		}
		if c.tired(began) {
			return fmt.Errorf("%w: for %v some transaction had a lock on the table (now: %s): end it, and repeat the command",
				err, time.Since(began).Round(time.Second), c.holders(ctx))
		}
		if !rest(ctx, alonePause/2+rand.N(alonePause)) { //nolint:gosec // spreads tries, hides nothing
			return fmt.Errorf("wait for a lock on the table: %w", context.Cause(ctx))
		}
	}
}

// tired reports whether patience is exhausted for attempts since began.
func (c *change) tired(began time.Time) bool {
	patience := c.patience
	if patience == 0 {
		patience = DefaultLockPatience
	}
	return time.Since(began) > patience
}

// rest returns false if ctx ends before d is over.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// holders names the sessions that use the table, longest first.
func (c *change) holders(ctx context.Context) string {
	return c.sessions(ctx, `SELECT pid FROM pg_locks WHERE relation = to_regclass($1) AND granted`, c.table("outbox_events"))
}

// namedSessions is how many sessions are named in an error.
const namedSessions = 5

// sessions names the sessions whose process ids the query returns, longest first.
func (c *change) sessions(ctx context.Context, pids string, args ...any) string {
	var who string
	var n int
	err := c.conn.QueryRow(ctx, fmt.Sprintf(`SELECT coalesce(string_agg(format('pid %%s, user %%s, application %%L, since %%s', pid, usename, application_name, since), '; ' ORDER BY since)
			FILTER (WHERE n <= %d), 'no visible session'), count(*)
		FROM (SELECT pid, usename, application_name, coalesce(xact_start, backend_start) AS since, row_number() OVER (ORDER BY coalesce(xact_start, backend_start), pid) AS n
			FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND pid IN (%s)) AS s`, namedSessions, pids), args...).Scan(&who, &n)
	if err != nil {
		return "unknown: " + err.Error()
	}
	if n > namedSessions {
		who += fmt.Sprintf("; and %d more", n-namedSessions)
	}
	return who
}
