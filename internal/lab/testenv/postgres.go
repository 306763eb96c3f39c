package testenv

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
)

// EnvPostgresURL names the environment variable with the URL of the shared
// PostgreSQL. Its role must be allowed to create databases.
const EnvPostgresURL = "NOTIFYD_TEST_POSTGRES_URL"

// Server is a shared server. It has no more methods because a test must not stop
// it: use [OwnPostgres] for that.
type Server interface {
	// URL returns the connection URL of a database, "" for the one that administers
	// the server.
	URL(db string) string
}

// sharedPostgres is one server for all tests of a test binary.
type sharedPostgres struct {
	mu     sync.Mutex
	server Server
	admin  *pgxpool.Pool // of its administrator
	copies string        // the strategy of CREATE DATABASE for copies of a template
	err    error         // why the start failed; it is tried once

	templates map[string]string // names of databases, by their content
}

// postgres is state of the package because TestMain runs before the tests and
// cannot pass them values. Its mutex guards it, and only test binaries contain
// it.
var postgres sharedPostgres //nolint:gochecknoglobals // see above

// Postgres returns the server that all tests of this binary share: the one of
// [EnvPostgresURL], or a private one that [Main] ends.
func Postgres(tb testing.TB) Server {
	tb.Helper()
	server, err := postgres.get(tb.Context())
	orSkip(tb, "postgres", err)
	return server
}

// Database creates an empty database on the shared server and returns its URL. It is dropped after the test, even with
// open connections. Notifications stay within a database, so that tests do not receive each other's.
func Database(tb testing.TB) string {
	tb.Helper()
	return DatabaseIn(tb, "")
}

// DatabaseIn is [Database] in an encoding of PostgreSQL; "" is the encoding of the server.
func DatabaseIn(tb testing.TB, encoding string) string {
	tb.Helper()
	options := ""
	if encoding != "" {
		options = " TEMPLATE template0 LOCALE 'C' ENCODING '" + encoding + "'"
	}
	return create(tb, Postgres(tb), options)
}

// Copy is [Database] with the content that fill writes; content names it. The first test of this binary fills it. Each
// other test gets a copy, which takes a third of the time of a migration. fill must close its connections.
func Copy(tb testing.TB, content string, fill func(ctx context.Context, databaseURL string) error) string {
	tb.Helper()
	server := Postgres(tb)
	template, err := postgres.template(tb.Context(), content, fill)
	if err != nil {
		tb.Fatalf("fill a database with %s: %v", content, err)
	}
	return create(tb, server, " TEMPLATE "+template+postgres.copies)
}

// template returns the name of the database with that content.
func (p *sharedPostgres) template(
	ctx context.Context, content string, fill func(ctx context.Context, databaseURL string) error,
) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if name := p.templates[content]; name != "" {
		return name, nil
	}

	name := databaseName("template")
	if err := p.administer(ctx, "CREATE DATABASE "+name); err != nil {
		return "", err
	}

	shared.stopLater(func(ctx context.Context) error {
		return p.administer(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
	})

	if err := fill(ctx, p.server.URL(name)); err != nil {
		return "", err
	}

	if p.templates == nil {
		p.templates = make(map[string]string)
	}
	p.templates[content] = name
	return name, nil
}

// create creates a database on the shared server, which the end of the test drops.
func create(tb testing.TB, server Server, options string) string {
	tb.Helper()

	name := databaseName(tb.Name())
	if err := postgres.administer(tb.Context(), "CREATE DATABASE "+name+options); err != nil {
		tb.Fatalf("create the database of the test: %v", err)
	}

	tb.Cleanup(func() {
		ctx, cancel := afterwards(tb)
		defer cancel()
		if err := postgres.administer(ctx, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			tb.Errorf("drop the database of the test: %v", err)
		}
	})

	return server.URL(name)
}

// OwnPostgres starts a server for this test alone, which may kill or pause it. settings are added to the settings of the
// shared server, or replace them. The end of the test stops it.
func OwnPostgres(tb testing.TB, settings map[string]string) *pgserver.Server {
	tb.Helper()
	return OwnPostgresIn(tb, "", settings)
}

// OwnPostgresIn is [OwnPostgres] with all files of the server in dir, which must
// be empty or not exist, and which other accounts can traverse.
func OwnPostgresIn(tb testing.TB, dir string, settings map[string]string) *pgserver.Server {
	tb.Helper()
	server, err := startPostgres(tb.Context(), pgserver.Config{Dir: dir, Settings: settings})
	orSkip(tb, "postgres", err)
	stopAfter(tb, "PostgreSQL", server.Stop)
	return server
}

// OwnNewPostgres is [OwnPostgres] with a version, major or newer, that may differ from the version of the other tests.
func OwnNewPostgres(tb testing.TB, major int, settings map[string]string) *pgserver.Server {
	tb.Helper()
	binDir, err := pgserver.FindNewer(tb.Context(), major)
	orSkip(tb, "postgres", err)
	server, err := startPostgres(tb.Context(), pgserver.Config{BinDir: binDir, Settings: settings})
	orSkip(tb, "postgres", err)
	stopAfter(tb, "PostgreSQL", server.Stop)
	return server
}

// ToolsPostgres is [OwnPostgres] with the given major version. binDir has all of its programs, such as pg_upgrade.
func ToolsPostgres(tb testing.TB, major int, settings map[string]string) (server *pgserver.Server, binDir string) {
	tb.Helper()
	binDir, err := pgserver.FindTools(major)
	return startTools(tb, binDir, err, settings), binDir
}

// RepackPostgres is [OwnPostgres] with pg_repack, which is among the programs in binDir.
func RepackPostgres(tb testing.TB, settings map[string]string) (server *pgserver.Server, binDir string) {
	tb.Helper()
	binDir, err := pgserver.FindRepack()
	return startTools(tb, binDir, err, settings), binDir
}

func startTools(tb testing.TB, binDir string, err error, settings map[string]string) *pgserver.Server {
	tb.Helper()
	orSkip(tb, "postgres-tools", err)
	server, err := startPostgres(tb.Context(), pgserver.Config{BinDir: binDir, Settings: settings})
	orSkip(tb, "postgres-tools", err)
	stopAfter(tb, "PostgreSQL", server.Stop)
	return server
}

// Standby starts a standby of primary, which is stopped for a moment. port is the standby's port, 0 for a free one. The
// end of the test stops it.
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

	if p.server == nil && p.err == nil {
		p.server, p.err = findOrStart(ctx)
		if p.err == nil {
			p.err = p.connect(ctx)
		}
	}
	return p.server, p.err
}

// findOrStart returns the server of [EnvPostgresURL], or a private one that [Main] ends.
func findOrStart(ctx context.Context) (Server, error) {
	if raw := os.Getenv(EnvPostgresURL); raw != "" {
		return newExternal(raw)
	}

	own, err := startPostgres(ctx, pgserver.Config{})
	if err != nil {
		return nil, err
	}

	shared.stopLater(own.Stop)
	return own, nil
}

// connect opens the connections that create and drop databases. A connection per statement would take a quarter of the
// time that the database of a test takes.
func (p *sharedPostgres) connect(ctx context.Context) (err error) {
	p.admin, err = pgxpool.New(context.WithoutCancel(ctx), p.server.URL(""))
	if err != nil {
		return err
	}

	shared.stopLater(func(context.Context) error {
		p.admin.Close()
		return nil
	})

	// A copy of the files has the caches of the template, which the first connection would otherwise fill. A server that
	// flushes each file is faster without.
	const copiesFiles = `SELECT current_setting('fsync') = 'off' AND current_setting('server_version_num')::int >= 150000`
	var is bool
	if err := p.admin.QueryRow(ctx, copiesFiles).Scan(&is); err != nil {
		return err
	}
	if is {
		p.copies = " STRATEGY FILE_COPY"
	}
	return nil
}

// administer runs one statement that cannot run in a transaction.
func (p *sharedPostgres) administer(ctx context.Context, statement string) error {
	_, err := p.admin.Exec(ctx, statement)
	return err
}

// startPostgres starts a server with the installed programs: a test run installs nothing.
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

// external is a server that the tests did not start.
type external struct{ url url.URL }

func newExternal(raw string) (Server, error) {
	u, err := url.Parse(raw)
	if err != nil {
		// The text of err holds the URL, which may hold a password.
		return nil, fmt.Errorf("%s is not a URL", EnvPostgresURL)
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
		u.Path = "/" + db
		u.RawPath = ""
	}
	return u.String()
}

// databaseName returns a name that contains the name of the test, and is unique
// on the server.
func databaseName(test string) string {
	safe := strings.Map(func(r rune) rune {
		isLetter := r >= 'a' && r <= 'z'
		isDigit := r >= '0' && r <= '9'
		if isLetter || isDigit {
			return r
		}
		return '_'
	}, strings.ToLower(test))

	// 63 bytes are the limit of PostgreSQL; 10 letters of base 32 are 50 bits.
	const (
		prefix  = "t_"
		letters = 10
		limit   = 63
	)
	unique := strings.ToLower(rand.Text()[:letters])
	return prefix + safe[:min(len(safe), limit-len(prefix)-1-letters)] + "_" + unique
}
