package outboxes

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Open opens a session of a command, with the settings that its statements rely on.
func Open(ctx context.Context, cfg *pgx.ConnConfig) (*pgx.Conn, error) {
	session.Startup(cfg)
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, ConnectError(err)
	}

	if err := session.SetDirect(ctx, conn); err != nil {
		store.Close(ctx, conn)
		return nil, err
	}
	return conn, nil
}

// ConnectError is the error of pgx on one line, with the cure.
func ConnectError(err error) error {
	return &unconnected{fmt.Sprintf("%s: %s", session.ConnectText(err), store.ConnectCure(err)), err}
}

// unconnected is a connection that was not made, with the cure in its text.
type unconnected struct {
	text string
	err  error
}

// ParsePool reads the connection string of a relay.
func ParsePool(c *config.Config) (*pgxpool.Config, error) {
	return ParsePoolOf(&c.Database, c.DatabaseSetting("url"))
}

// ParsePoolOf reads the connection string of a database for a pool. place is for errors.
func ParsePoolOf(c *config.Database, place config.Mistake) (*pgxpool.Config, error) {
	pool, err := ParseURL(place, c.URL.Reveal(), pgxpool.ParseConfig)
	if err != nil {
		return nil, err
	}

	identify(pool.ConnConfig, c.URL.Reveal(), c)
	session.Startup(pool.ConnConfig)
	pool.AfterConnect = session.SetDirect
	pool.MaxConns = 1 // the relay opens other connections itself
	return pool, nil
}

// ParseListen parses the connection string for LISTEN. Without one it returns nil.
func ParseListen(c *config.Config) (*pgx.ConnConfig, error) {
	url := c.Database.ListenURL.Reveal()
	if url == "" {
		return nil, nil //nolint:nilnil // most configurations have none
	}

	cfg, err := ParseURL(c.DatabaseSetting("listen_url"), url, pgx.ParseConfig)
	if err != nil {
		return nil, err
	}

	identify(cfg, url, &c.Database)
	return cfg, nil
}

// Parse reads the connection string of the database of c for a single connection. place is for errors, as in [ParseURL].
func Parse(c *config.Database, place config.Mistake) (*pgx.ConnConfig, error) {
	cfg, err := ParseURL(place, c.URL.Reveal(), pgx.ParseConfig)
	if err != nil {
		return nil, err
	}

	identify(cfg, c.URL.Reveal(), c)
	return cfg, nil
}

// ParseURL reads the connection string of place, whose message is the name of the setting. The error repeats no part of
// it: any part of a misspelt one may be the password.
func ParseURL[C any](place config.Mistake, text string, parse func(string) (C, error)) (C, error) {
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
		place = config.Mistake{File: "the environment variables PG*"}
	}

	// pgx writes: cannot parse `the string without the apparent password`: reason
	// (detail).
	reason := "it cannot be parsed"
	if at := strings.LastIndex(err.Error(), "`: "); at >= 0 {
		reason = err.Error()[at+len("`: "):]
	}
	return none, badURL(place, reason)
}

// badURL is a mistake in the configuration, at place.
func badURL(place config.Mistake, reason string) error {
	if place.Message != "" {
		place.Message += ": "
	}
	place.Message += "not a connection string: " + reason +
		": write postgres://user:password@host:5432/database, with special characters of the password in percent form (%40 for @)"

	return &config.Error{Mistakes: []config.Mistake{place}}
}

func (e *unconnected) Error() string { return e.text }
func (e *unconnected) Unwrap() error { return e.err }

// OpenTable connects to the database of a configuration, whose table a relay of it could
// work with. The caller closes the connection.
func OpenTable(ctx context.Context, c *config.Config, role string) (*session.Conn, error) {
	cfg, err := Parse(&c.Database, c.DatabaseSetting("url"))
	if err != nil {
		return nil, err
	}

	listen, err := ParseListen(c)
	if err != nil {
		return nil, err
	}

	conn, err := OpenAsRelay(ctx, &store.Connector{Config: cfg, Schema: c.Database.Schema}, listen, role)
	if err != nil {
		return nil, ConnectError(err)
	}

	if err := CheckTable(ctx, conn, c); err != nil {
		store.Close(ctx, conn.Conn)
		return nil, err
	}
	return conn, nil
}

// CheckTable returns an error if a relay of the configuration could not work with the
// table: it is not migrated, it is a copy, or it is a queue and a destination needs a stream.
func CheckTable(ctx context.Context, conn outboxsql.DB, c *config.Config) error {
	if err := outboxsql.Check(ctx, conn, c.Database.Schema); err != nil {
		return err
	}

	state, err := outboxsql.ReadState(ctx, conn, c.Database.Schema)
	if err != nil {
		return err
	}

	if err := state.Home.Check(c.Database.Schema); err != nil {
		return err
	}

	if state.Mode != outboxsql.ModeQueue {
		return nil
	}
	return NeedsStream(c)
}

// NeedsStream returns the error of a configuration whose table is a queue: a [*config.Error] with each setting that only
// a stream can honor, which also wraps [notifyd.ErrNeedsStream]. It returns nil if a queue has everything that c wants.
func NeedsStream(c *config.Config) error {
	all := c.NeedsStream()
	if len(all) == 0 {
		return nil
	}
	for i := range all {
		all[i].Message += fmt.Sprintf(": outbox_events of schema %q is a queue: %v", c.Database.Schema, notifyd.ErrNeedsStream)
	}

	return &queueError{config.Error{Mistakes: all}}
}

// queueError is a mistake in the configuration of a queue.
type queueError struct{ list config.Error }

func (e *queueError) Error() string   { return e.list.Error() }
func (e *queueError) Unwrap() []error { return []error{&e.list, notifyd.ErrNeedsStream} }

// OpenAsRelay connects as a relay does: past a pooler in transaction mode if the table is a queue.
func OpenAsRelay(ctx context.Context, c *store.Connector, listen *pgx.ConnConfig, role string) (*session.Conn, error) {
	conn, err := c.Open(ctx, role)
	if err == nil && conn.IsShared() {
		var state outboxsql.State
		state, err = outboxsql.ReadState(ctx, conn, c.Schema)
		if err == nil && state.Mode == outboxsql.ModeQueue {
			err = store.ErrPooler
		}
		if err != nil {
			store.Close(ctx, conn.Conn)
		}
	}

	if errors.Is(err, store.ErrPooler) && listen != nil {
		c.Redirect(listen)
		var direct *pgx.Conn
		direct, err = c.Connect(ctx, role)
		if err == nil {
			conn = session.Direct(direct)
		}
	}

	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	return conn, nil
}

// CheckURLs reads the connection strings of a file, those of its listed outboxes among them, and compares what
// follows from them.
func CheckURLs(c *config.Config) error {
	all := []*config.Config{c}
	for i := range c.Outboxes.List {
		if o := &c.Outboxes.List[i]; !o.URL.IsZero() {
			all = append(all, c.For(o))
		}
	}

	var found config.Error
	for _, one := range all {
		_, err := ParsePool(one)
		if err == nil {
			_, err = ParseListen(one)
		}
		if wrong, is := errors.AsType[*config.Error](err); is {
			found.Mistakes = append(found.Mistakes, wrong.Mistakes...)
		} else if err != nil {
			return err
		}
	}

	if len(found.Mistakes) > 0 {
		return &found
	}
	return checkPositionIDs(c)
}
