package testenv

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/privateserver/pgserver"
)

// EnvPostgresURL names the environment variable with the URL of a PostgreSQL
// that is used as the shared server. Its role must be allowed to create
// databases.
const EnvPostgresURL = "NOTIFYD_TEST_POSTGRES_URL"

// Server is a server that tests share. It has no more methods because nobody
// may stop it: that takes [OwnPostgres].
type Server interface {
	// URL returns the connection URL of a database, "" for the one to
	// administer the server from.
	URL(db string) string
}

// sharedPostgres is one server for all tests of a test binary.
type sharedPostgres struct {
	mu     sync.Mutex
	server Server
	err    error // why there is none; it is tried once
}

// postgres is state of the package because a test function has nothing to carry
// it: TestMain starts before the tests and hands them nothing. It is guarded by
// its mutex, and only test binaries hold it.
var postgres sharedPostgres //nolint:gochecknoglobals // see above

// Postgres returns the server that all tests of this binary share: the one of
// [EnvPostgresURL], or a private one that [Main] ends.
func Postgres(tb testing.TB) Server {
	tb.Helper()
	server, err := postgres.get(tb.Context())
	orSkip(tb, "postgres", err)
	return server
}

// Database creates an empty database on the shared server and returns its URL.
// It is dropped after the test, whoever may still be connected. Notifications
// stay within a database, so that tests do not hear each other.
func Database(tb testing.TB) string {
	tb.Helper()
	server := Postgres(tb)
	name := databaseName(tb.Name())
	if err := administer(tb.Context(), server, "CREATE DATABASE "+name); err != nil {
		tb.Fatalf("create the database of the test: %v", err)
	}
	tb.Cleanup(func() {
		ctx, cancel := afterwards(tb)
		defer cancel()
		if err := administer(ctx, server, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			tb.Errorf("drop the database of the test: %v", err)
		}
	})
	return server.URL(name)
}

// OwnPostgres starts a server for this test alone, which may kill or pause it.
// settings are added to those of the shared one, or replace them. The end of the
// test stops it.
func OwnPostgres(tb testing.TB, settings map[string]string) *pgserver.Server {
	tb.Helper()
	return OwnPostgresIn(tb, "", settings)
}

// OwnPostgresIn is [OwnPostgres] with everything of the server in dir, which must
// be empty or not exist, and which others than its owner can pass through.
func OwnPostgresIn(tb testing.TB, dir string, settings map[string]string) *pgserver.Server {
	tb.Helper()
	server, err := startPostgres(tb.Context(), pgserver.Config{Dir: dir, Settings: settings})
	orSkip(tb, "postgres", err)
	stopAfter(tb, "PostgreSQL", server.Stop)
	return server
}

// Standby starts a server that follows primary, which goes down for a moment.
// port is its own, 0 for a free one. The end of the test stops it.
func Standby(tb testing.TB, primary *pgserver.Server, port int) *pgserver.Server {
	tb.Helper()
	server, err := pgserver.StartStandby(tb.Context(), primary, pgserver.Config{Port: port})
	if err != nil {
		tb.Fatal(err)
	}
	stopAfter(tb, "standby", server.Stop)
	return server
}

func (p *sharedPostgres) get(ctx context.Context) (Server, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server != nil || p.err != nil {
		return p.server, p.err
	}
	if raw := os.Getenv(EnvPostgresURL); raw != "" {
		p.server, p.err = newExternal(raw)
		return p.server, p.err
	}
	own, err := startPostgres(ctx, pgserver.Config{})
	if err != nil {
		p.err = err
		return nil, err
	}
	shared.stopLater(own.Stop)
	p.server = own
	return own, nil
}

// startPostgres starts a server of the programs that are there: a test run
// installs nothing.
func startPostgres(ctx context.Context, cfg pgserver.Config) (*pgserver.Server, error) {
	if cfg.BinDir == "" {
		binDir, err := pgserver.Find(ctx)
		if err != nil {
			return nil, err
		}
		cfg.BinDir = binDir
	}
	// Parallel tests, each with a relay or two and their pools.
	all := map[string]string{"max_connections": "300"}
	maps.Copy(all, cfg.Settings)
	cfg.Settings = all
	return pgserver.Start(ctx, cfg)
}

// external is a server that somebody else runs.
type external struct{ url url.URL }

func newExternal(raw string) (Server, error) {
	u, err := url.Parse(raw)
	if err != nil {
		// The text of err holds the URL, which may hold a password.
		return nil, fmt.Errorf("%s is no URL", EnvPostgresURL)
	}
	if u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, fmt.Errorf("%s does not begin with postgres://", EnvPostgresURL)
	}
	return external{*u}, nil
}

// URL implements [Server].
func (e external) URL(db string) string {
	u := e.url
	if db != "" {
		u.Path, u.RawPath = "/"+db, ""
	}
	return u.String()
}

// administer runs one statement that cannot be in a transaction.
func administer(ctx context.Context, server Server, statement string) error {
	conn, err := pgx.Connect(ctx, server.URL(""))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	return errors.Join(err, conn.Close(ctx))
}

// databaseName returns a name that tells the test, and that no other test on
// the same server has, in this process or another.
func databaseName(test string) string {
	safe := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(test))
	// 63 bytes are the limit of PostgreSQL; 10 letters of base 32 are 50 bits.
	const prefix, letters, limit = "t_", 10, 63
	unique := strings.ToLower(rand.Text()[:letters])
	return prefix + safe[:min(len(safe), limit-len(prefix)-1-letters)] + "_" + unique
}
