// Package bench measures notifyd: the latency of an event, the rate of draining a backlog, the cost of the trigger for
// writers, and all of them over time. In the same run it measures the database alone, because on a busy machine only
// figures of the same run are comparable.
//
// Each bench is an [Experiment]: its fields are the options, and [Measure] runs it. An experiment prepares its tables,
// measures its scenarios in turns, and fills a [Result] with a column for each scenario.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/lab/privateserver/pginstall"
	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Options are the options of all benches.
type Options struct {
	// DatabaseURL is the database to use, in schemas of the bench that are dropped at
	// the end. Empty: a private PostgreSQL, installed if need be.
	DatabaseURL string
	// Force allows a database that holds events in other schemas.
	Force bool
	// Out receives the text for people.
	Out io.Writer
	// Log receives the relay's log.
	Log *slog.Logger
	// Relay is the command line of a process that calls [Serve]. Some benches run the relay apart from the writers, to
	// measure the CPU time of each.
	Relay []string

	// settings of a private server, which replace the usual ones or add to them.
	settings map[string]string
}

// Experiment is a bench with its options.
type Experiment interface {
	// Check returns an error for contradictory options, in the words of the command's flags.
	Check() error
	// run prepares the tables, measures, and returns the figures.
	run(ctx context.Context, e *env) (*Result, error)
}

// Measure runs an experiment in the database of the options, or in a private one, and prints the result.
func Measure(ctx context.Context, o Options, x Experiment) (r *Result, err error) {
	if err := x.Check(); err != nil {
		return nil, err
	}
	if tuned, ok := x.(interface{ settings() map[string]string }); ok {
		o.settings = tuned.settings()
	}
	err = within(ctx, o, func(ctx context.Context, e *env) (err error) {
		r, err = x.run(ctx, e)
		return err
	})
	if err != nil {
		return nil, err
	}
	r.print(o.Out)
	return r, nil
}

// option is a flag of a number.
type option struct {
	name  string
	value int
}

// atLeast returns an error for the first option that is below a limit.
func atLeast(least int, options ...option) error {
	for _, o := range options {
		if o.value < least {
			return fmt.Errorf("--%s %d is below %d", o.name, o.value, least)
		}
	}
	return nil
}

// ErrInUse is returned for a database that holds events.
var ErrInUse = errors.New("the database holds events, and a bench would slow down their delivery")

const (
	// settleWithin bounds the time from the last commit to a delivery: a later one counts as lost. It also bounds the
	// time in which a drain makes no progress.
	settleWithin = 30 * time.Second
	// cleanupWithin bounds dropping the schemas and stopping the server.
	cleanupWithin = time.Minute
	// maxConns of the pool, which inspects the tables and is not measured.
	maxConns = 4
)

// privateSettings are the settings of a private server: production's durability, and
// enough WAL that no checkpoint falls into a run of seconds.
func privateSettings() map[string]string {
	return map[string]string{
		"shared_buffers":     "256MB",
		"max_wal_size":       "4GB",
		"min_wal_size":       "1GB",
		"checkpoint_timeout": "15min",
		"max_connections":    "300",
	}
}

// env holds the open resources of a run.
type env struct {
	Options
	url     string
	prefix  string // of the schemas
	pool    *pgxpool.Pool
	cleanup []func(context.Context) error
}

// within opens the database, runs f, and closes everything.
func within(ctx context.Context, o Options, f func(context.Context, *env) error) error {
	e := &env{Options: o, prefix: fmt.Sprintf("notifyd_bench_%08x", rand.Uint32())} //nolint:gosec // tells runs apart, hides nothing
	err := e.open(ctx)
	if err == nil {
		err = f(ctx, e)
	}
	return errors.Join(err, e.close(ctx))
}

func (e *env) open(ctx context.Context) error {
	e.url = e.DatabaseURL
	if e.url == "" {
		settings := privateSettings()
		maps.Copy(settings, e.settings)
		server, err := pginstall.Start(ctx, pgserver.Config{Durable: true, Log: e.Out, Settings: settings})
		if err != nil {
			return fmt.Errorf("start a private PostgreSQL: %w", err)
		}
		e.cleanup = append(e.cleanup, server.Stop)
		e.url = server.URL("")
	}
	cfg, err := pgxpool.ParseConfig(e.url)
	if err != nil {
		return fmt.Errorf("database url: %w", err)
	}
	cfg.MaxConns = maxConns
	if e.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return fmt.Errorf("database url: %w", err)
	}
	e.cleanup = append(e.cleanup, func(context.Context) error { e.pool.Close(); return nil })
	if !e.Force {
		if err := e.refuseUsed(ctx); err != nil {
			return err
		}
	}
	return e.describe(ctx)
}

// refuseUsed returns an error if any outbox of the database holds events.
func (e *env) refuseUsed(ctx context.Context) error {
	rows, err := e.pool.Query(ctx, `SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relname = 'outbox_events' AND c.relkind IN ('r', 'p') AND has_table_privilege(c.oid, 'SELECT')
		AND has_schema_privilege(n.oid, 'USAGE')`)
	if err != nil {
		return fmt.Errorf("look for events: %w", err)
	}
	schemas, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("look for events: %w", err)
	}
	for _, schema := range schemas {
		var used bool
		if err := e.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+table(schema)+")").Scan(&used); err != nil {
			return fmt.Errorf("look for events: %w", err)
		}
		if used {
			return fmt.Errorf("%w: %s is not empty (--force measures all the same, in a schema of its own)", ErrInUse, table(schema))
		}
	}
	return nil
}

// migrate creates a schema with the tables. The end of the run drops it.
func (e *env) migrate(ctx context.Context, name string, notify outboxsql.NotifyMode) (schema string, err error) {
	schema = e.prefix + "_" + name
	_, err = outboxsql.Migrate(ctx, e.pool, schema, outboxsql.MigrateOptions{Notify: notify})
	if err != nil {
		return "", err
	}
	e.cleanup = append(e.cleanup, func(ctx context.Context) error {
		return e.drop(ctx, schema)
	})
	return schema, nil
}

// migrateTo is migrate with tables of a mode.
func (e *env) migrateTo(ctx context.Context, name string, notify outboxsql.NotifyMode, mode outboxsql.Mode) (schema string, err error) {
	schema, err = e.migrate(ctx, name, notify)
	if err == nil && mode == outboxsql.ModeStream {
		err = e.makeStream(ctx, schema, 0)
	}
	return schema, err
}

// drop drops a schema of the bench, if it exists.
func (e *env) drop(ctx context.Context, schema string) error {
	for {
		_, err := e.pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{schema}.Sanitize()+" CASCADE")
		if refused, is := errors.AsType[*pgconn.PgError](err); !is || refused.Code != deadlockDetected {
			return err
		}
	}
}

// deadlockDetected is the SQLSTATE of a DROP that collided with the last statement of a relay that has ended: the server
// notices late that the client is gone.
const deadlockDetected = "40P01"

// connect opens a connection as an application would; close closes it.
func (e *env) connect(ctx context.Context) (*pgx.Conn, error) {
	cfg := e.pool.Config().ConnConfig.Copy()
	cfg.RuntimeParams["application_name"] = benchName
	return pgx.ConnectConfig(ctx, cfg)
}

// benchName is the application_name of the bench's own connections.
const benchName = "notifyd/bench"

// connectMany opens n connections and runs prepare on each.
func (e *env) connectMany(ctx context.Context, n int, prepare func(*pgx.Conn) error) ([]*pgx.Conn, error) {
	conns := make([]*pgx.Conn, 0, n)
	for range n {
		conn, err := e.connect(ctx)
		if err == nil {
			conns = append(conns, conn)
			err = prepare(conn)
		}
		if err != nil {
			closeAll(ctx, conns)
			return nil, err
		}
	}
	return conns, nil
}

// close closes everything in reverse order, also after ctx has ended.
func (e *env) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupWithin)
	defer cancel()
	var errs []error
	for _, f := range slices.Backward(e.cleanup) {
		errs = append(errs, f(ctx))
	}
	return errors.Join(errs...)
}

// printf writes for people. An error means that the reader is gone, and is ignored.
func (e *env) printf(format string, args ...any) { _, _ = fmt.Fprintf(e.Out, format, args...) }

// in returns the quoted name of a table or index in a schema.
func in(schema, name string) string { return pgx.Identifier{schema, name}.Sanitize() }

// table returns the quoted name of a schema's table of events.
func table(schema string) string { return in(schema, "outbox_events") }

// deliveries returns the quoted name of a schema's table of stored deliveries.
func deliveries(schema string) string { return in(schema, "outbox_deliveries") }
