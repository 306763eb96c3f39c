package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// databaseFlags are the flags of commands that need the database and can do
// without a configuration file.
type databaseFlags struct {
	url    string
	schema string
	place  string // where url stands, for messages

	// isGiven reports whether the flag of url is set; nil where a command has none.
	isGiven func() bool
	// given is url as the flag has it.
	given string
	// keep is retention.keep of the file; negative where no file was read.
	keep time.Duration
	// outbox is the name of one of many outboxes, and found are all of them once they are known.
	outbox string
	found  []config.Outbox
}

const databaseFlag = "--database-url"

func (f *databaseFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.url, "database-url", "", "connection `string`, in place of database.url and database.listen_url of the file")
	f.isGiven = func() bool { return cmd.Flags().Changed("database-url") }
	f.registerSchema(cmd)
	cmd.Flags().StringVar(&f.outbox, "outbox", "", "`name` of one of the outboxes of the file, where it has many")
}

func (f *databaseFlags) registerSchema(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.schema, "schema", "", "schema of the tables, in place of database.schema of the file")
}

// resolve fills in settings that the flags leave open from the configuration file, or
// from the environment where there is no file. Of the file it reads database, retention and
// outboxes only.
func (f *databaseFlags) resolve(ctx context.Context, a *app) error {
	if f.schema != "" {
		if err := outboxsql.ValidateSchema(f.schema); err != nil {
			return usageErrorf("--schema: %w", err)
		}
	}
	switch {
	case f.url != "":
		f.place = databaseFlag
	case f.isGiven != nil && f.isGiven():
		return usageErrorf("%s: %s", databaseFlag, config.EmptyURL)
	}
	f.keep, f.given = -1, f.url
	if f.url == "" || f.schema == "" || f.outbox != "" {
		c, path, err := f.optional(ctx, a, config.LoadDatabase)
		if err != nil {
			return err
		}
		if c != nil {
			f.keep = c.Retention.Keep
			f.url, f.place = c.Database.URL.Reveal(), first(f.place, path+": "+c.DatabaseSetting("url"))
			f.schema = first(f.schema, c.Database.Schema)
		}
	}
	if f.url == "" {
		url, set := a.lookup("DATABASE_URL")
		if set && url == "" {
			return &config.Error{Mistakes: []config.Mistake{{File: "$DATABASE_URL", Message: config.EmptyURL}}}
		}
		f.url, f.place = url, "$DATABASE_URL"
	}
	f.schema = first(f.schema, outboxsql.DefaultSchema)
	return outboxsql.ValidateSchema(f.schema)
}

// loader is a function of package config that reads a file, or a part of it.
type loader func(path, url string, lookup config.LookupEnv) (*config.Config, error)

// optional returns the result of load for the configuration file, with the flags on
// top, nil if there is no file and none is asked for. Where the file has many outboxes, it is the
// configuration of the chosen one.
func (f *databaseFlags) optional(ctx context.Context, a *app, load loader) (*config.Config, string, error) {
	path, err := config.Find(a.configPath, a.lookup)
	if err != nil {
		if f.outbox != "" {
			return nil, "", err
		}
		return nil, "", nil // there is no file at all
	}
	c, err := load(path, f.given, a.lookup)
	if err == nil {
		c, err = f.choose(ctx, c, path)
	}
	return c, path, err
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// connect opens a connection for a command. The error never shows a password.
func (f *databaseFlags) connect(ctx context.Context, a *app) (*pgx.Conn, error) {
	if err := f.resolve(ctx, a); err != nil {
		return nil, err
	}
	cfg, err := parseURL(f.place, f.url, pgx.ParseConfig)
	if err != nil {
		return nil, err
	}
	a.role, a.schema = cfg.User, f.schema
	return open(ctx, cfg)
}

// open opens a session of a command, with the settings that its statements rely on.
func open(ctx context.Context, cfg *pgx.ConnConfig) (*pgx.Conn, error) {
	session.Startup(cfg)
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, connectError(err)
	}
	if err := session.SetDirect(ctx, conn); err != nil {
		store.Close(ctx, conn)
		return nil, err
	}
	return conn, nil
}

// connectTable is connect for a command that works on the tables: they must have the newest schema.
func (f *databaseFlags) connectTable(ctx context.Context, a *app) (*pgx.Conn, error) {
	conn, err := f.connect(ctx, a)
	if err != nil {
		return nil, err
	}
	if err := outboxsql.Check(ctx, conn, f.schema); err != nil {
		store.Close(ctx, conn)
		return nil, err
	}
	return conn, nil
}

// connectError is the error of pgx on one line, with the cure: pgx has a line for each
// address and each way of encryption, and most of them are equal.
func connectError(err error) error {
	var lines []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	text := strings.Join(lines, "; ")
	return &unconnected{fmt.Sprintf("%s: %s", strings.Replace(text, ":; ", ": ", 1), store.ConnectCure(err)), err}
}

// unconnected is a connection that was not made, with the cure in its text.
type unconnected struct {
	text string
	err  error
}

func (e *unconnected) Error() string { return e.text }
func (e *unconnected) Unwrap() error { return e.err }

// parsePool reads the connection string of a relay.
func parsePool(c *config.Config, path string) (*pgxpool.Config, error) {
	pool, err := parseURL(path+": "+c.DatabaseSetting("url"), c.Database.URL.Reveal(), pgxpool.ParseConfig)
	if err != nil {
		return nil, err
	}
	session.Startup(pool.ConnConfig)
	pool.AfterConnect = session.SetDirect
	pool.MaxConns = 1 // the relay opens connections of its own
	return pool, nil
}

// parseListen reads the connection string for LISTEN, nil if there is none.
func parseListen(c *config.Config, path string) (*pgx.ConnConfig, error) {
	url := c.Database.ListenURL.Reveal()
	if url == "" {
		return nil, nil //nolint:nilnil // most configurations have none
	}
	return parseURL(path+": "+c.DatabaseSetting("listen_url"), url, pgx.ParseConfig)
}

// parseURL reads the connection string of place. The error repeats no part of it: any
// part of a misspelt one may be the password.
func parseURL[C any](place, text string, parse func(string) (C, error)) (C, error) {
	var none C
	if scheme, rest, isURL := strings.Cut(text, "://"); isURL && strings.HasPrefix(scheme, "postgres") {
		// The text behind the first @ would be taken for the host, and logged.
		if before, _, _ := strings.Cut(rest, "?"); strings.Count(before, "@") > 1 {
			return none, badURL(place, "it has more than one @")
		}
	}
	cfg, err := parse(text)
	if err == nil {
		return cfg, nil
	}
	if text == "" {
		place = "the environment variables PG*"
	}
	// pgx writes: cannot parse `the string without the apparent password`: reason
	// (detail).
	reason := "it cannot be parsed"
	if at := strings.LastIndex(err.Error(), "`: "); at >= 0 {
		reason = err.Error()[at+len("`: "):]
	}
	return none, badURL(place, reason)
}

// badURL is a mistake in the command line if the string comes from there, else one in
// the configuration, with the exit code of either.
func badURL(place, reason string) error {
	message := "not a connection string: " + reason +
		": write postgres://user:password@host:5432/database, with special characters of the password in percent form (%40 for @)"
	if place == databaseFlag {
		return usageErrorf("%s: %s", place, message)
	}
	return &config.Error{Mistakes: []config.Mistake{{File: place, Message: message}}}
}
