package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/notifyd/notifyd/internal/freeport"
)

// superuser is the role that owns every private server.
const superuser = "postgres"

// portTries bounds how often Start picks another port after someone else took
// the one it had chosen. Losing the race even twice in a row is unlikely.
const portTries = 5

// Config describes a server. The zero value is a fast one on a free port, with
// its data in a temporary directory.
type Config struct {
	// BinDir holds postgres and initdb. When it is empty, [Ensure] looks for
	// PostgreSQL and installs it where it is missing.
	BinDir string
	// Dir is where the server keeps its data, log and socket; [Server.Stop]
	// removes it. It must be empty or not exist. "" is a new directory below
	// [os.TempDir].
	Dir string
	// Port is the TCP port on 127.0.0.1; 0 is a free one.
	Port int
	// Settings are lines for postgresql.conf, name to value without quotes.
	Settings map[string]string
	// Durable makes the server flush to disk like one in production. Without
	// it fsync is off: committed data survives the death of the server, but
	// not of the machine.
	Durable bool
	// Log receives progress lines for a human, as "installing PostgreSQL". May
	// be nil.
	Log io.Writer
}

// Server is a running private PostgreSQL. Its methods may be called from
// several goroutines; those that change its state run one after the other.
//
// Whoever called [Start] must call [Server.Stop] and must keep the Server until
// then: the watchdog takes a collected Server for a dead owner.
type Server struct {
	binDir  string
	dir     string
	account account
	dog     *watchdog

	mu      sync.Mutex
	port    int      // fixed once Start has returned
	version string   // likewise
	proc    *process // nil while the server is down
	frozen  bool     // between Pause and Resume
	stopped bool     // the data is gone
}

// Start makes a new cluster, starts it and returns once it answers queries.
// ctx bounds the start (and an installation), not the life of the server.
// The error tells what the server itself said; nothing is left behind then.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	return launchServer(ctx, cfg, func(s *Server) error { return s.initdb(ctx, cfg) })
}

// launchServer starts a server whose directory fill fills.
func launchServer(ctx context.Context, cfg Config, fill func(*Server) error) (*Server, error) {
	acc, err := serverAccount()
	if err != nil {
		return nil, err
	}
	binDir := cfg.BinDir
	if binDir == "" {
		if binDir, err = Ensure(ctx, cfg.Log); err != nil {
			return nil, err
		}
	}
	dir, err := makeDir(cfg.Dir, acc)
	if err != nil {
		return nil, err
	}
	dog, err := startWatchdog(ctx, dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s := &Server{binDir: binDir, dir: dir, account: acc, dog: dog, port: cfg.Port}
	if err := s.create(ctx, fill); err != nil {
		return nil, errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// create fills the directory and starts the server for the first time.
func (s *Server) create(ctx context.Context, fill func(*Server) error) error {
	if err := fill(s); err != nil {
		return err
	}
	if s.port != 0 {
		return s.start(ctx)
	}
	var err error
	for range portTries {
		if s.port, err = freeport.Pick(ctx); err != nil {
			return err
		}
		if err = s.start(ctx); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

// URL returns the connection URL of database db, as superuser; "" is the
// database postgres. It is the same before and after a restart.
func (s *Server) URL(db string) string {
	if db == "" {
		db = "postgres"
	}
	u := url.URL{
		Scheme:   "postgres",
		User:     url.User(superuser),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path:     "/" + db,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Port returns the TCP port on 127.0.0.1.
func (s *Server) Port() int { return s.port }

// Dir returns the directory that holds everything of this server.
func (s *Server) Dir() string { return s.dir }

// LogFile returns the path of the server's log.
func (s *Server) LogFile() string { return filepath.Join(s.dir, "server.log") }

// Version returns the version as the server tells it, "18.4" for example; a
// distribution may add to it, as in "15.18 (Debian 15.18-0+deb12u1)".
func (s *Server) Version() string { return s.version }

func (s *Server) dataDir() string { return filepath.Join(s.dir, "data") }

func (s *Server) socketDir() string { return filepath.Join(s.dir, "socket") }

// progress writes one line for a human.
func progress(w io.Writer, format string, args ...any) {
	if w != nil {
		// A progress line that cannot be written is no reason to fail.
		_, _ = fmt.Fprintf(w, format+"\n", args...)
	}
}
