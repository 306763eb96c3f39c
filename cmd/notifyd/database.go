package main

import (
	"context"
	"errors"
	"time"

	"github.com/notifyd/notifyd/internal/outboxes"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/config"
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

// parse reads the connection string, after resolve.
func (f *databaseFlags) parse() (*pgx.ConnConfig, error) {
	cfg, err := outboxes.ParseURL(f.place, f.url, pgx.ParseConfig)
	return cfg, fromCommandLine(f.place, err)
}

// fromCommandLine is a mistake in the command line, if the connection string was there.
func fromCommandLine(place string, err error) error {
	if wrong, ok := errors.AsType[*config.Error](err); ok && place == databaseFlag {
		return usageErrorf("%v", wrong)
	}
	return err
}

// connect opens a connection for a command. The error never shows a password.
func (f *databaseFlags) connect(ctx context.Context, a *app) (*pgx.Conn, error) {
	if err := f.resolve(ctx, a); err != nil {
		return nil, err
	}
	cfg, err := f.parse()
	if err != nil {
		return nil, err
	}
	a.role, a.schema = cfg.User, f.schema
	return outboxes.Open(ctx, cfg)
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
