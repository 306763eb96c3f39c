package pgserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
)

// superuser is the role that owns every private server.
const superuser = "postgres"

// Config describes a server. The zero value is a fast server on a free port, with its
// data in a temporary directory.
type Config struct {
	// BinDir holds postgres and initdb. "" is the result of [Find].
	BinDir string
	// Dir is where the server keeps its data, log and socket; [Server.Stop]
	// removes it. It must be empty or not exist. "" is a new directory below
	// [os.TempDir].
	Dir string
	// Port is the TCP port on 127.0.0.1; 0 is a free one.
	Port int
	// Settings are lines for postgresql.conf, name to value without quotes.
	Settings map[string]string
	// Durable makes the server flush to disk as in production. Without it fsync is off:
	// committed data survives a crash of the server, but not of the machine.
	Durable bool
	// Log receives progress lines for a human. May be nil.
	Log io.Writer
}

// Server is a running private PostgreSQL. The caller of [Start] calls [Server.Stop].
type Server struct {
	*privateserver.Server

	binDir  string
	version string // fixed once Start has returned
}

// Start creates a cluster, starts it and returns once it answers queries. ctx bounds the
// start, not the life of the server. The error quotes the server's log; nothing is left
// behind then.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.BinDir == "" {
		found, err := Find(ctx)
		if err != nil {
			return nil, err
		}
		cfg.BinDir = found
	}

	return start(ctx, cfg, func(ctx context.Context, s *privateserver.Server) error { return initdb(ctx, s, cfg) })
}

// start starts a server whose data directory fill fills.
func start(ctx context.Context, cfg Config, fill func(context.Context, *privateserver.Server) error) (*Server, error) {
	account, err := serverAccount()
	if err != nil {
		return nil, err
	}

	pg := &Server{binDir: cfg.BinDir}
	pg.Server, err = privateserver.Start(ctx, privateserver.Program{
		Name:    "PostgreSQL",
		Account: account,
		Dir:     cfg.Dir,
		// An empty database has 300 files, and ext4 takes several milliseconds of CPU time for each after many were removed.
		InMemory: !cfg.Durable,
		Port:     cfg.Port,
		Env:      environment,
		Create: func(ctx context.Context, s *privateserver.Server) error {
			if err := errors.Join(s.MakeDir("data"), s.MakeDir("socket")); err != nil {
				return fmt.Errorf("directory for PostgreSQL: %w", err)
			}
			return fill(ctx, s)
		},
		Command: func(s *privateserver.Server) (string, []string, error) {
			return filepath.Join(cfg.BinDir, "postgres"), []string{"-D", dataDir(s), "-p", strconv.Itoa(s.Port())}, nil
		},
		Ask:  pg.ask,
		Busy: []string{"pre-existing shared memory block", `"postmaster.pid" already exists`},
		// The only signal by which a server ends even with frozen sessions, and frees its
		// shared memory.
		Orphan:  "QUIT",
		Cleanup: func(s *privateserver.Server) error { return freeMemory(dataDir(s), account) },
	})
	if err != nil {
		return nil, err
	}
	return pg, nil
}

// serverAccount returns the account for PostgreSQL, which refuses to run as root.
func serverAccount() (privateserver.Account, error) {
	return privateserver.Unprivileged("postgres", "_postgres", "nobody")
}

// environment returns the environment of this process, without variables that would change the server or the language of
// the messages that a start reads.
func environment(*privateserver.Server) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "PG") || strings.HasPrefix(kv, "LC_") || strings.HasPrefix(kv, "LANG")
	})
	return append(env, "LC_ALL=C")
}

// ask connects once and reads the version. It accepts s only: the port may belong to
// another server.
func (s *Server) ask(ctx context.Context, server *privateserver.Server) error {
	conn, err := pgx.Connect(ctx, serverURL(server.Addr(), "postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // the answer is complete

	var dir, version string
	const query = `SELECT current_setting('data_directory'), current_setting('server_version')`
	if err := conn.QueryRow(ctx, query).Scan(&dir, &version); err != nil {
		return err
	}

	if dir != dataDir(server) {
		return fmt.Errorf("another server, with its data in %s, has the port", dir)
	}

	if s.version == "" {
		s.version = version
	}
	return nil
}

// URL returns the connection URL of database db, as superuser; "" is the
// database postgres. It is the same before and after a restart.
func (s *Server) URL(db string) string { return serverURL(s.Addr(), cmp.Or(db, "postgres")) }

func serverURL(addr, db string) string {
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Host: addr, Path: "/" + db, RawQuery: "sslmode=disable"}
	return u.String()
}

// Version returns the server_version, "18.4" for example; a distribution may add to it,
// as in "15.18 (Debian 15.18-0+deb12u1)".
func (s *Server) Version() string { return s.version }

func dataDir(s *privateserver.Server) string { return filepath.Join(s.Dir(), "data") }

func socketDir(s *privateserver.Server) string { return filepath.Join(s.Dir(), "socket") }
