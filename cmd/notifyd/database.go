package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/config"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// databaseFlags are the flags of commands that need the database and can do
// without a configuration file.
type databaseFlags struct {
	url    string
	schema string
}

func (f *databaseFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.url, "database-url", "", "connection `string`, in place of database.url of the file")
	cmd.Flags().StringVar(&f.schema, "schema", "", "schema of the tables, in place of database.schema of the file")
}

// resolve fills in from the configuration file what the flags leave open, and
// from the environment where there is no file.
func (f *databaseFlags) resolve(a *app) error {
	if f.url == "" || f.schema == "" {
		c, _, err := a.load()
		switch {
		case err == nil:
			f.url, f.schema = first(f.url, c.Database.URL.Reveal()), first(f.schema, c.Database.Schema)
		case a.configPath != "" || !isMissing(err, a):
			return err
		}
	}
	if f.url == "" {
		f.url, _ = a.lookup("DATABASE_URL")
	}
	f.schema = first(f.schema, outboxsql.DefaultSchema)
	return outboxsql.ValidateSchema(f.schema)
}

// isMissing reports whether there is no configuration file at all, which is no
// mistake for a command that does not need one.
func isMissing(err error, a *app) bool {
	_, findErr := config.Find(a.configPath, a.lookup)
	return findErr != nil && findErr.Error() == err.Error()
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
	if err := f.resolve(a); err != nil {
		return nil, err
	}
	cfg, err := pgx.ParseConfig(f.url)
	if err != nil {
		return nil, badURL("the connection string", err)
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	return conn, nil
}

// parsePool reads the connection string of a relay.
func parsePool(c *config.Config) (*pgxpool.Config, error) {
	pool, err := pgxpool.ParseConfig(c.Database.URL.Reveal())
	if err != nil {
		return nil, badURL("database.url", err)
	}
	pool.MaxConns = 1 // the relay opens connections of its own
	return pool, nil
}

// badURL is a mistake in the configuration, and says so by its exit code.
func badURL(what string, err error) error {
	return &config.Error{Mistakes: []config.Mistake{{File: what, Message: errors.Unwrap(fmt.Errorf("%w", err)).Error()}}}
}
