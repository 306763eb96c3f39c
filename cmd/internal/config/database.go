package config

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/credential"
	"github.com/notifyd/notifyd/internal/field"
)

// Database holds the connection to PostgreSQL.
type Database struct {
	// Connection string: `postgres://user:password@host:5432/db`, or
	// `host=... dbname=...`.
	URL handlers.Secret `yaml:"url" unset:"'$DATABASE_URL', then the variables 'PG*' of libpq"`

	// Connection string that leads directly to the database. Needed where `url`
	// leads through a pooler in transaction mode, where LISTEN hears nothing: a
	// stream uses it for LISTEN, a queue for everything.
	ListenURL handlers.Secret `yaml:"listen_url" unset:"'database.url'"`

	// PostgreSQL schema that holds the outbox tables.
	Schema string `yaml:"schema"`

	// Program with its arguments that prints a password or a token on one line, for
	// connection strings without a password. It is run without a shell, for a new
	// connection, and has 8 s.
	PasswordCommand []string `yaml:"password_command" kind:"list of strings"`

	// How long the output of `password_command` is used for new connections: less
	// than the password is valid. `0` runs the program for every connection.
	PasswordLifetime time.Duration `yaml:"password_lifetime"`

	// Region of a database of Amazon RDS or Aurora that authenticates with IAM, for
	// connection strings without a password. The AWS SDK finds the identity.
	AWSRegion string `yaml:"aws_region"`

	// passwords is a pointer, so that all outboxes of a file share a run of the program.
	passwords *credential.Passwords
}

// Password returns how a connection gets a password that its connection string does not have. It returns nil without
// such a setting.
func (d *Database) Password() credential.Password {
	return d.passwords.Of(credential.Settings{Command: d.PasswordCommand, Lifetime: d.PasswordLifetime, Region: d.AWSRegion})
}

func (d *Database) place() Place {
	text := d.URL.Reveal()
	c, err := pgconn.ParseConfig(text)
	if err != nil {
		return Place{text, d.Schema} // no connection string, which is reported elsewhere
	}

	servers := []string{server(c.Host, c.Port)}
	for _, f := range c.Fallbacks { // one for each host, and for each way of encryption
		if s := server(f.Host, f.Port); !slices.Contains(servers, s) {
			servers = append(servers, s)
		}
	}

	slices.Sort(servers)
	return Place{strings.Join(servers, ",") + "/" + cmp.Or(c.Database, c.User), d.Schema}
}

// checkIdentity checks where passwords come from.
func (d *Database) checkIdentity() error {
	var errs []error
	if len(d.PasswordCommand) > 0 && strings.TrimSpace(d.PasswordCommand[0]) == "" {
		errs = append(errs, field.Errorf("database.password_command", "begins with an empty word: name a program, then its arguments"))
	}
	if len(d.PasswordCommand) > 0 && d.AWSRegion != "" {
		errs = append(errs, field.Errorf("database.aws_region", "excludes password_command: remove one of them"))
	}
	if d.PasswordLifetime < 0 {
		errs = append(errs, field.Errorf("database.password_lifetime", "is negative: use 0 to run the program for every connection"))
	}

	return errors.Join(errs...)
}
