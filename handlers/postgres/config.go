package postgres

import (
	"cmp"
	"errors"
	"io/fs"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/session"
)

const (
	defaultSchema = "public"
	// defaultTable is not inbox_events: that is the table of package inbox, which a consumer may have in
	// the same schema.
	defaultTable = "received_events"
	// defaultRequestTimeout is far above the time of a statement.
	defaultRequestTimeout = 15 * time.Second
	maxRequestTimeout     = 10 * time.Minute
	// maxName is how many bytes of a name PostgreSQL keeps.
	maxName = 63
	// maxSource keeps the key well within an entry of its index, which PostgreSQL bounds at 2704 bytes.
	maxSource = 255
)

// DefaultLane returns the recommended settings of a lane: one statement at a time keeps the order of the
// events, and takes many of them.
func DefaultLane() delivery.Lane {
	return delivery.Lane{Concurrency: 1, Batch: 1000, Timeout: 2 * defaultRequestTimeout}
}

// Config holds the database and the table for events.
type Config struct {
	// Connection string of the other database,
	// `postgres://user:password@host:5432/db`. Files that it names, such as
	// `sslrootcert`, need their whole path.
	URL handlers.Secret `json:"url" yaml:"url" unset:"required"`

	// Name of this outbox, in each row and in its key. No two outboxes that write
	// into one table may have the same.
	Source string `json:"source" yaml:"source" unset:"required"`

	// Schema of the table.
	//
	// The default is "public".
	Schema string `json:"schema,omitempty" yaml:"schema,omitempty"`

	// The table. The page of the destination has the SQL that creates it.
	//
	// The default is "received_events".
	Table string `json:"table,omitempty" yaml:"table,omitempty"`

	// Longest time for one statement, connecting included.
	//
	// The default is 15s.
	RequestTimeout time.Duration `json:"request_timeout,omitempty" yaml:"request_timeout,omitempty" kind:"duration, at most '10m'"`
}

// WithDefaults returns a copy with every default filled in.
func (c Config) WithDefaults() Config {
	c.Schema = cmp.Or(c.Schema, defaultSchema)
	c.Table = cmp.Or(c.Table, defaultTable)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, defaultRequestTimeout)
	return c
}

// Within returns how long one statement may take before the handler gives up on it.
func (c Config) Within() time.Duration { return c.WithDefaults().RequestTimeout }

// Validate returns all mistakes at once, joined, each as a [*handlers.FieldError] with its cure. It reads no files: [New]
// does.
func (c Config) Validate() error {
	errs := []error{
		checkName("schema", c.Schema), checkName("table", c.Table),
		field.Timeout("request_timeout", c.RequestTimeout, maxRequestTimeout, defaultRequestTimeout),
	}
	if c.URL.IsZero() {
		errs = append(errs, field.Errorf("url", "missing: write ${env:INBOX_URL}, and into that variable "+
			"postgres://user:password@host:5432/db"))
	}

	switch {
	case c.Source == "":
		errs = append(errs, field.Errorf("source", "missing: name this outbox, such as shop; each outbox that writes "+
			"into the table needs a name of its own"))
	case len(c.Source) > maxSource:
		errs = append(errs, field.Errorf("source", "has more than %d bytes", maxSource))
	case !isText(c.Source):
		errs = append(errs, field.Errorf("source", "must be text"))
	}

	return errors.Join(errs...)
}

func checkName(path, name string) error {
	switch {
	case len(name) > maxName:
		return field.Errorf(path, "has more than %d bytes", maxName)
	case !isText(name):
		return field.Errorf(path, "must be text")
	default:
		return nil
	}
}

func isText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// target reads the connection string, and the files that it names.
func (c Config) target() (*pgx.ConnConfig, error) {
	text := c.URL.Reveal()
	if _, rest, isURL := strings.Cut(text, "://"); isURL {
		// What is behind the first @ would be taken for the host, and logged.
		if before, _, _ := strings.Cut(rest, "?"); strings.Count(before, "@") > 1 {
			return nil, field.Errorf("url", "has more than one @: write %%40 for one in the password")
		}
	}

	to, err := pgx.ParseConfig(text)
	file, isFile := errors.AsType[*fs.PathError](err)
	switch {
	case isFile:
		return nil, field.Errorf("url", "%w", file)
	case err != nil: // its text may have the password
		return nil, field.Errorf("url", "is not a connection string: write postgres://user:password@host:5432/db, "+
			"with special characters in percent form")
	case strings.Contains(text, "://") && !strings.HasPrefix(text, "postgres://") && !strings.HasPrefix(text, "postgresql://"):
		return nil, field.Errorf("url", "must begin with postgres://")
	}

	if to.ValidateConnect == nil && len(to.Fallbacks) > 0 {
		to.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite // of several hosts, the primary
	}

	session.Startup(to)
	if _, ok := to.RuntimeParams["application_name"]; !ok {
		to.RuntimeParams["application_name"] = "notifyd"
	}

	return to, nil
}

// name returns the quoted name of the table.
func (c Config) name() string { return pgx.Identifier{c.Schema, c.Table}.Sanitize() }
