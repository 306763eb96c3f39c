package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Database is a place where a PostgreSQL may run.
type Database struct {
	// URL is a connection string: keywords and values if Guessed is true. The PG* variables complete it.
	URL string
	// Place names, for messages, the source of the URL or the place that was tried.
	Place string
	// Guessed is true if the user has not named the database. The demo may then use the database postgres, and the server
	// must answer within seconds.
	Guessed bool
}

// Local returns the usual places of a PostgreSQL on this machine.
func Local() []Database {
	var all []Database
	for _, dir := range []string{"/var/run/postgresql", "/tmp"} {
		all = append(all, Database{URL: "host=" + dir + " port=5432", Place: "socket in " + dir, Guessed: true})
	}
	return append(all, Database{URL: "host=localhost port=5432", Place: "localhost:5432", Guessed: true})
}

// NotFoundError reports that the demo can use none of the databases.
type NotFoundError struct{ Tried []Tried }

// Tried is a database that the demo cannot use, and why.
type Tried struct {
	Database

	Err error
}

// Error implements error.
func (e *NotFoundError) Error() string {
	var all []string
	for _, t := range e.Tried {
		all = append(all, fmt.Sprintf("%s: %v", t.Place, t.Err))
	}
	return "no usable PostgreSQL: " + strings.Join(all, "; ")
}

const (
	// guessWithin bounds the check of a server that the user has not named.
	guessWithin = 5 * time.Second
	// oldest is the oldest PostgreSQL that notifyd works with, as server_version_num.
	oldest = 140000 // tested, and not promised
	// noDatabase is the SQLSTATE of a database that does not exist.
	noDatabase = "3D000"
)

// find returns how to connect to the first usable database, and its description.
func find(ctx context.Context, databases []Database) (*pgxpool.Config, string, error) {
	missing := &NotFoundError{}
	for _, db := range databases {
		cfg, about, err := db.look(ctx)
		if err == nil {
			return cfg, about, nil
		}
		if ctx.Err() != nil {
			return nil, "", context.Cause(ctx)
		}
		missing.Tried = append(missing.Tried, Tried{db, err})
	}
	return nil, "", missing
}

// look returns how to connect to the database and a description of it, or why the demo cannot use it.
func (db Database) look(ctx context.Context) (*pgxpool.Config, string, error) {
	cfg, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		return nil, "", err
	}

	if db.Guessed {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, guessWithin)
		defer cancel()
	}

	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == noDatabase && db.Guessed {
		db.URL += " dbname=postgres"
		cfg, err = pgxpool.ParseConfig(db.URL)
		if err != nil {
			return nil, "", err
		}
		conn, err = pgx.ConnectConfig(ctx, cfg.ConnConfig)
	}

	if err != nil {
		return nil, "", err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // nothing was written

	var name, role, version string
	var number int
	var standby, creates bool
	err = conn.QueryRow(ctx, `SELECT current_database()::text, current_user::text,
		current_setting('server_version'), current_setting('server_version_num')::int,
		pg_is_in_recovery(), has_database_privilege(current_database(), 'CREATE')`).
		Scan(&name, &role, &version, &number, &standby, &creates)

	switch {
	case err != nil:
		return nil, "", err
	case number < oldest:
		return nil, "", fmt.Errorf("PostgreSQL %s is too old: notifyd needs 15 or newer", version)
	case standby:
		return nil, "", errors.New("a standby, which takes no writes")
	case !creates:
		return nil, "", fmt.Errorf("%s may not create a schema in the database %s (GRANT CREATE ON DATABASE %s TO %s)",
			role, name, pgx.Identifier{name}.Sanitize(), pgx.Identifier{role}.Sanitize())
	}

	at := cfg.ConnConfig.Host
	if !strings.HasPrefix(at, "/") { // a directory of sockets
		at = fmt.Sprintf("%s:%d", at, cfg.ConnConfig.Port)
	}
	return cfg, fmt.Sprintf("database %s at %s (PostgreSQL %s; %s)", name, at, version, db.Place), nil
}

// connect opens the database, and creates a schema in it that is dropped at the end.
func (d *demo) connect(ctx context.Context) error {
	cfg, about, err := find(ctx, d.Databases)
	if err != nil {
		return err
	}
	d.pool, err = pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}

	d.cleanup = append(d.cleanup, func() error { d.pool.Close(); return nil })

	d.schema = fmt.Sprintf("notifyd_demo_%08x", rand.Uint32()) //nolint:gosec // tells runs apart, hides nothing
	name := pgx.Identifier{d.schema}.Sanitize()
	// Not IF NOT EXISTS: the demo must drop only a schema that it created.
	if _, err := d.pool.Exec(ctx, "CREATE SCHEMA "+name); err != nil {
		return fmt.Errorf("create a schema for the demo: %w", err)
	}

	d.cleanup = append(d.cleanup, func() error {
		dropCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
		defer cancel()
		if _, err := d.pool.Exec(dropCtx, "DROP SCHEMA "+name+" CASCADE"); err != nil {
			return fmt.Errorf("the schema %s is left behind: DROP SCHEMA %s CASCADE removes it: %w", d.schema, name, err)
		}
		return nil
	})

	d.say("%s, schema %s, dropped at the end\n", about, d.schema)
	return nil
}
