package plainserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/notifyd/notifyd/internal/freeport"
	"github.com/notifyd/notifyd/internal/watchdog"
)

// portTries bounds how often Start picks another port after somebody else took
// the one that it had chosen.
const portTries = 3

// Server is a running private server. Its methods may be called from several
// goroutines; those that change its state run one after the other. Whoever
// called [Start] must call [Server.Stop].
type Server struct {
	program Program
	path    string // of the executable
	dir     string
	dog     *watchdog.Watchdog
	port    int // fixed once Start has returned

	mu      sync.Mutex
	proc    *process // nil before the first start
	stopped bool     // the data is gone
}

// Start starts a server in a temporary directory and returns once it answers.
// ctx bounds the start, not the life of the server. The error is [ErrNotFound]
// where the program is not installed; otherwise it shows what the server itself
// said, and nothing is left behind.
func Start(ctx context.Context, program Program) (*Server, error) {
	path, err := program.find()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "notifyd-"+program.Name+"-")
	if err != nil {
		return nil, fmt.Errorf("directory for %s: %w", program.Name, err)
	}
	dog, err := watchdog.Start(ctx, dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s := &Server{program: program, path: path, dir: dir, dog: dog}
	if err := s.create(ctx); err != nil {
		return nil, errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// create starts the server for the first time.
func (s *Server) create(ctx context.Context) error {
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

// Addr returns host and port. It is the same before and after a restart.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// LogFile returns the path of what the server wrote to its standard outputs
// since it was last started.
func (s *Server) LogFile() string { return filepath.Join(s.dir, "server.log") }

// Dir returns the directory with the data of the server.
func (s *Server) Dir() string { return s.dir }

// PID returns the process id of the running server, 0 while it is down.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || s.proc.exited() {
		return 0
	}
	return s.proc.cmd.Process.Pid
}
