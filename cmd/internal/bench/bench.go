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
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/lab/privateserver/pginstall"
	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Options are the options of all experiments.
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
}

// Experiment is a bench with its options.
type Experiment interface {
	// Define describes the command, and adds a flag for each option.
	Define(cmd *cobra.Command)
	// Check returns an error for contradictory options.
	Check() error
	// Run prepares the tables, measures, and returns the figures.
	Run(ctx context.Context, e *Env) (*Result, error)
}

// tuned is an experiment whose private server has other settings than [privateSettings].
type tuned interface{ Settings() map[string]string }

// Experiments returns the experiments of this package.
func Experiments() []Experiment {
	return []Experiment{
		&Latency{}, &Drain{}, &Insert{}, &Capture{}, &Soak{}, &Takeover{}, &Shards{}, &Replay{}, &Variants{},
	}
}

// Measure runs an experiment in the database of the options, or in a private one, and prints the result.
func Measure(ctx context.Context, o Options, x Experiment) (r *Result, err error) {
	settings := privateSettings()
	if t, ok := x.(tuned); ok {
		settings = t.Settings()
	}
	err = within(ctx, o, settings, func(ctx context.Context, e *Env) (err error) {
		r, err = x.Run(ctx, e)
		return err
	})
	if err != nil {
		return nil, err
	}

	r.print(o.Out)
	return r, nil
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

// Env holds the open resources of a run.
type Env struct {
	Options
	// URL is the database of the run.
	URL string
	// Prefix is the beginning of the names of schemas and databases of the run.
	Prefix string
	// Pool inspects the tables, and is not measured.
	Pool *pgxpool.Pool

	cleanup []func(context.Context) error
}

// Private reports whether the server is the bench's.
func (e *Env) Private() bool { return e.DatabaseURL == "" }

// Cleanup registers a function for the end of the run, after those that were registered later.
func (e *Env) Cleanup(f func(context.Context) error) { e.cleanup = append(e.cleanup, f) }

// within opens the database, runs f, and closes everything.
func within(ctx context.Context, o Options, settings map[string]string, f func(context.Context, *Env) error) error {
	e := &Env{Options: o, Prefix: fmt.Sprintf("notifyd_bench_%08x", rand.Uint32())} //nolint:gosec // tells runs apart, hides nothing
	err := e.open(ctx, settings)
	if err == nil {
		err = f(ctx, e)
	}
	return errors.Join(err, e.close(ctx))
}

func (e *Env) open(ctx context.Context, settings map[string]string) error {
	e.URL = e.DatabaseURL
	if e.Private() {
		server, err := pginstall.Start(ctx, pgserver.Config{Durable: true, Log: e.Out, Settings: settings})
		if err != nil {
			return fmt.Errorf("start a private PostgreSQL: %w", err)
		}
		e.Cleanup(server.Stop)
		e.URL = server.URL("")
	}

	cfg, err := pgxpool.ParseConfig(e.URL)
	if err != nil {
		return fmt.Errorf("database url: %w", err)
	}
	cfg.MaxConns = maxConns
	e.Pool, err = pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("database url: %w", err)
	}
	e.Cleanup(func(context.Context) error { e.Pool.Close(); return nil })

	if !e.Force {
		if err := e.refuseUsed(ctx); err != nil {
			return err
		}
	}
	return e.describe(ctx)
}

// refuseUsed returns an error if any outbox of the database holds events.
func (e *Env) refuseUsed(ctx context.Context) error {
	rows, err := e.Pool.Query(ctx, `SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
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
		if err := e.Pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+table(schema)+")").Scan(&used); err != nil {
			return fmt.Errorf("look for events: %w", err)
		}
		if used {
			return fmt.Errorf("%w: %s is not empty (--force measures all the same, in a schema of its own)", ErrInUse, table(schema))
		}
	}
	return nil
}

// migrate creates a schema with tables of a mode. The end of the run drops it.
func (e *Env) migrate(ctx context.Context, name string, notify outboxsql.NotifyMode, mode outboxsql.Mode) (schema string, err error) {
	schema = e.Prefix + "_" + name
	_, err = outboxsql.Migrate(ctx, e.Pool, schema, outboxsql.MigrateOptions{Notify: notify})
	if err != nil {
		return "", err
	}
	e.Cleanup(func(ctx context.Context) error { return e.drop(ctx, schema) })

	if mode == outboxsql.ModeStream {
		err = e.makeStream(ctx, schema, 0)
	}
	return schema, err
}

// drop drops a schema of the bench, if it exists.
func (e *Env) drop(ctx context.Context, schema string) error {
	for {
		_, err := e.Pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{schema}.Sanitize()+" CASCADE")
		if refused, is := errors.AsType[*pgconn.PgError](err); !is || refused.Code != deadlockDetected {
			return err
		}
	}
}

// deadlockDetected is the SQLSTATE of a DROP that collided with the last statement of a relay that has ended: the server
// notices late that the client is gone.
const deadlockDetected = "40P01"

// connect opens a connection as an application would; close closes it.
func (e *Env) connect(ctx context.Context) (*pgx.Conn, error) {
	cfg := e.Pool.Config().ConnConfig.Copy()
	cfg.RuntimeParams["application_name"] = benchName
	return pgx.ConnectConfig(ctx, cfg)
}

// benchName is the application_name of the bench's own connections.
const benchName = "notifyd/bench"

// close closes everything in reverse order, also after ctx has ended.
func (e *Env) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupWithin)
	defer cancel()
	var errs []error
	for _, f := range slices.Backward(e.cleanup) {
		errs = append(errs, f(ctx))
	}
	return errors.Join(errs...)
}

// Printf writes for people. An error means that the reader is gone, and is ignored.
func (e *Env) Printf(format string, args ...any) { _, _ = fmt.Fprintf(e.Out, format, args...) }
