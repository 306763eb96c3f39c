package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/doctor"
	"github.com/notifyd/notifyd/cmd/internal/outboxes"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// DatabaseFlags are the flags of commands that need the database and can do
// without a configuration file.
type DatabaseFlags struct {
	URL    string
	Schema string
	Place  config.Mistake // the setting or variable that URL comes from, for messages

	// IsGiven reports whether --database-url is set. It is nil in commands without that flag.
	IsGiven func() bool
	// Given is the value of --database-url.
	Given string
	// Keep is retention.keep of the file, or negative if no file was read.
	Keep time.Duration
	// Outbox is the value of --outbox.
	Outbox string
	found  []config.Outbox // all outboxes, once the query has returned them
	unset  bool            // neither a flag nor a file nor DATABASE_URL has a connection string
	file   config.Database // of the file, for its identity
}

// FlagsOf returns the flags of a command that connects to the database of a configuration file.
func FlagsOf(c *config.Config) DatabaseFlags {
	return DatabaseFlags{
		URL:    c.Database.URL.Reveal(),
		Schema: c.Database.Schema,
		Place:  c.DatabaseSetting("url"),
		file:   c.Database,
	}
}

// DatabaseFlag is the flag with the connection string, for messages.
const DatabaseFlag = "--database-url"

// Register adds --database-url, --schema and --outbox.
func (f *DatabaseFlags) Register(cmd *cobra.Command) {
	AddDatabaseURL(cmd, &f.URL)
	f.IsGiven = func() bool { return cmd.Flags().Changed("database-url") }
	f.RegisterSchema(cmd)
	AddOutbox(cmd, &f.Outbox)
}

// RegisterSchema adds --schema.
func (f *DatabaseFlags) RegisterSchema(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.Schema, "schema", "", "schema of the tables, in place of database.schema of the file")
}

// Resolve completes the flags from the configuration file or, without a file, from DATABASE_URL. It reads only the
// sections database, retention and outboxes.
func (f *DatabaseFlags) Resolve(ctx context.Context, a *App) error {
	if f.Schema != "" {
		if err := pgschema.Validate(f.Schema); err != nil {
			return UsageErrorf("--schema: %w", err)
		}
	}

	switch {
	case f.URL != "":
		f.Place = config.Mistake{File: DatabaseFlag}
	case f.IsGiven != nil && f.IsGiven():
		return UsageErrorf("%s: %s", DatabaseFlag, config.EmptyURL)
	}

	f.Keep = -1
	f.Given = f.URL
	if f.URL == "" || f.Schema == "" || f.Outbox != "" {
		if err := f.resolveFile(ctx, a); err != nil {
			return err
		}
	}
	if f.URL == "" {
		if err := f.resolveEnvironment(a); err != nil {
			return err
		}
	}

	f.Schema = First(f.Schema, outboxsql.DefaultSchema)
	return pgschema.Validate(f.Schema)
}

// resolveFile completes the flags from the configuration file, if there is one.
func (f *DatabaseFlags) resolveFile(ctx context.Context, a *App) error {
	c, _, err := f.Optional(ctx, a, config.LoadDatabase)
	if err != nil || c == nil {
		return err
	}

	f.Keep = c.Retention.Keep
	f.file = c.Database
	f.URL = c.Database.URL.Reveal()
	f.Schema = First(f.Schema, c.Database.Schema)
	if f.Given == "" {
		f.Place = c.DatabaseSetting("url")
	}
	return nil
}

// resolveEnvironment takes the connection string from DATABASE_URL.
func (f *DatabaseFlags) resolveEnvironment(a *App) error {
	url, isSet := a.Lookup("DATABASE_URL")
	url = config.TrimURL(url)
	if isSet && url == "" {
		return &config.Error{Mistakes: []config.Mistake{{File: "$DATABASE_URL", Message: config.EmptyURL}}}
	}

	f.URL = url
	f.Place = config.Mistake{File: "$DATABASE_URL"}
	f.unset = !isSet
	return nil
}

// loader is a function of package config that reads a file, or a part of it.
type loader func(path, url string, lookup config.LookupEnv) (*config.Config, error)

// Optional loads the configuration file and applies the flags. Without a file and without --outbox it returns
// nil. For a file with many outboxes it returns the configuration of the chosen one.
func (f *DatabaseFlags) Optional(ctx context.Context, a *App, load loader) (*config.Config, string, error) {
	path, err := config.Find(a.ConfigPath, a.Lookup)
	if err != nil {
		if f.Outbox != "" {
			return nil, "", err
		}
		return nil, "", nil // no file exists
	}

	c, err := load(path, f.Given, a.Lookup)
	if err == nil {
		c, err = f.Choose(ctx, c, path)
	}

	return c, path, err
}

// Parse reads the connection string, after resolve.
func (f *DatabaseFlags) Parse() (*pgx.ConnConfig, error) {
	database := f.file
	database.URL = handlers.NewSecret(f.URL)
	cfg, err := outboxes.Parse(&database, f.Place)
	return cfg, FromCommandLine(f.Place, err)
}

// ParsePool is Parse for a pool.
func (f *DatabaseFlags) ParsePool() (*pgxpool.Config, error) {
	database := f.file
	database.URL = handlers.NewSecret(f.URL)
	cfg, err := outboxes.ParsePoolOf(&database, f.Place)
	return cfg, FromCommandLine(f.Place, err)
}

// FromCommandLine is a mistake in the command line, if the connection string was there.
func FromCommandLine(place config.Mistake, err error) error {
	if wrong, ok := errors.AsType[*config.Error](err); ok && place.File == DatabaseFlag {
		return UsageErrorf("%v", wrong)
	}
	return err
}

// Connect opens a connection for a command. The error never shows a password.
func (f *DatabaseFlags) Connect(ctx context.Context, a *App) (*pgx.Conn, error) {
	if err := f.Resolve(ctx, a); err != nil {
		return nil, err
	}

	cfg, err := f.Parse()
	if err != nil {
		return nil, err
	}

	a.Role = cfg.User
	a.Schema = f.Schema
	conn, err := outboxes.Open(ctx, cfg)
	if err != nil {
		return nil, f.explain(err)
	}

	readUTC(conn)
	return conn, nil
}

// readUTC makes a connection return times in UTC, as results have them in JSON. pgx returns them in the zone of this machine.
func readUTC(conn *pgx.Conn) {
	codec := &pgtype.TimestamptzCodec{ScanLocation: time.UTC}
	conn.TypeMap().RegisterType(&pgtype.Type{Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: codec})
}

// Connector is [Connector] for the database of the flags, after Resolve.
func (f *DatabaseFlags) Connector(cfg *pgx.ConnConfig, role string) doctor.Connect {
	connect := Connector(cfg, role)
	return func(ctx context.Context) (*pgx.Conn, error) {
		conn, err := connect(ctx)
		return conn, f.explain(err)
	}
}

// explain adds to an error that the connection string is empty and why.
func (f *DatabaseFlags) explain(err error) error {
	if err == nil || !f.unset {
		return err
	}
	return fmt.Errorf("%w; there is no configuration file and no DATABASE_URL, "+
		"so this is the connection of the variables PG* and their defaults", err)
}

// ConnectTable is connect for a command that works on the tables: they must have the newest schema.
func (f *DatabaseFlags) ConnectTable(ctx context.Context, a *App) (*pgx.Conn, error) {
	conn, err := f.Connect(ctx, a)
	if err != nil {
		return nil, err
	}

	if err := outboxsql.Check(ctx, conn, f.Schema); err != nil {
		store.Close(ctx, conn)
		return nil, err
	}

	return conn, nil
}

// Choose returns the configuration of the chosen outbox, which is c itself where there is one only, or
// where --schema says which tables are meant.
func (f *DatabaseFlags) Choose(ctx context.Context, c *config.Config, path string) (*config.Config, error) {
	switch {
	case !c.Outboxes.Used() && f.Outbox != "":
		return nil, UsageErrorf("--outbox: %s has no outboxes", path)
	case !c.Outboxes.Used(), f.Outbox == "" && f.Schema != "":
		return c, nil
	case f.IsGiven == nil: // the command has no --outbox: it connects to nothing
		return nil, UsageErrorf("%s has many outboxes: --schema says whose tables are meant", path)
	}

	if err := f.find(ctx, c); err != nil {
		return nil, err
	}

	if f.Outbox == "" {
		return nil, UsageErrorf("%s has many outboxes: choose one with --outbox: %s", path, listNames(f.found))
	}

	i := slices.IndexFunc(f.found, func(o config.Outbox) bool { return o.Name == f.Outbox })
	if i < 0 {
		return nil, UsageErrorf("there is no outbox %q: %s", f.Outbox, listNames(f.found))
	}

	o := &f.found[i]
	if same := c.Outboxes.Outbox(o.Name); same != nil { // what this part of the file says of it
		o = same
	}
	return c.For(o), nil
}

// find fills in the outboxes, once.
func (f *DatabaseFlags) find(ctx context.Context, c *config.Config) (err error) {
	if f.found == nil {
		f.found, _, err = outboxes.Find(ctx, c) // the relay reports the rows that are wrong
	}
	return err
}

// Several returns the names of all outboxes, for a command that has a section for each; nil where there is
// one only, or one is chosen.
func (f *DatabaseFlags) Several(ctx context.Context, a *App) ([]string, error) {
	if f.Outbox != "" || f.Schema != "" {
		return nil, nil
	}

	path, err := config.Find(a.ConfigPath, a.Lookup)
	if err != nil {
		return nil, nil //nolint:nilerr // no file exists
	}

	c, err := config.LoadDatabase(path, f.URL, a.Lookup)
	if err != nil || !c.Outboxes.Used() {
		return nil, err
	}

	if err := f.find(ctx, c); err != nil {
		return nil, err
	}

	return append([]string{}, namesOfOutboxes(f.found)...), nil
}

// Each calls do with the flags. If there are many outboxes and none is chosen, it calls do for each, under a heading.
func (f *DatabaseFlags) Each(cmd *cobra.Command, a *App, do func(one DatabaseFlags) error) error {
	names, err := f.Several(cmd.Context(), a)
	if err != nil {
		return err
	}

	if names == nil {
		return do(*f)
	}

	return Sections(cmd.OutOrStdout(), names, func(name string) error { return do(f.Of(name)) })
}

// Of returns the flags with which an outbox is chosen.
func (f *DatabaseFlags) Of(name string) DatabaseFlags {
	one := *f
	one.Outbox = name
	return one
}
