package privateserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/notifyd/notifyd/internal/lab/freeport"
)

// portTries bounds how often Start picks other ports after another program has taken one.
const portTries = 5

const (
	// memoryDir is where Linux has a file system in memory. Containers have one of 64 MB there.
	memoryDir = "/dev/shm"
	// enoughMemory is the room there, in bytes, with which a server starts in memory. PostgreSQL writes at most 1 GB of
	// log between two checkpoints. All servers of a run of all tests take 0.5 GB together.
	enoughMemory = 2 << 30
)

var (
	// ErrNotFound reports that the programs of a server are not installed. The error that wraps it names the cure.
	ErrNotFound = errors.New("not installed")
	// ErrBusy reports that a port of the server is in use, or that its last run has not ended completely.
	ErrBusy = errors.New("a port is in use, or the last run is not over")
	// ErrStopped reports that [Server.Stop] has removed the server and its data.
	ErrStopped = errors.New("the server is stopped and its data removed")
	// ErrDown reports that the server does not run.
	ErrDown = errors.New("the server is not running")
	// ErrRunning reports that the server already runs.
	ErrRunning = errors.New("the server is already running")
	// ErrForced reports an orderly stop that took too long.
	ErrForced = errors.New("the server did not stop in time and was killed")
)

// Program describes one kind of server. Name, Command and Ask are required.
type Program struct {
	// Name of the server in errors.
	Name string
	// Account runs it.
	Account Account
	// Dir is where the server keeps its data and its log; [Server.Stop] removes
	// it. It must be empty or not exist. "" is a new directory below [os.TempDir].
	Dir string
	// InMemory makes "" a directory in memory where the machine has such a file system with enough room. It is for a
	// server that creates many files and flushes none.
	InMemory bool
	// Port is the TCP port on 127.0.0.1; 0 is a free one.
	Port int
	// MorePorts are set to free ports before Create runs.
	MorePorts []*int
	// Env returns the environment of its programs. Nil uses the environment of this process.
	Env func(*Server) []string
	// Create fills the directory of a new server. Nil leaves it empty.
	Create func(context.Context, *Server) error
	// Command returns the path and the arguments of its program. It may write
	// files, and is called before every start.
	Command func(*Server) (path string, args []string, err error)
	// Ask returns an error until the server is ready, and if another server has the
	// port.
	Ask func(context.Context, *Server) error
	// Busy are texts that the server logs while its last run has not ended completely.
	Busy []string
	// Orphan names the signal that ends a server whose owner has died, such as "QUIT".
	// "" is KILL.
	Orphan string
	// Cleanup runs before the directory is removed. Nil does nothing.
	Cleanup func(*Server) error
}

// Server is a private server. Its methods may be called from several goroutines;
// those that change its state run one after the other.
//
// The caller of [Start] calls [Server.Stop], and keeps the Server until then: to the
// watchdog, a garbage-collected Server is a dead owner.
type Server struct {
	program Program
	dir     string
	port    int // fixed once Start has returned
	dog     *watchdog
	proc    atomic.Pointer[process] // the last run; nil before the first one

	mu      sync.Mutex // held while the state changes
	frozen  bool       // between Pause and Resume
	stopped bool       // the data is gone
}

// Start starts a new server and returns once it answers. ctx bounds the start, not the
// life of the server. The error is [ErrNotFound] where the program is not installed;
// otherwise it quotes the server's log. After an error nothing is left behind.
func Start(ctx context.Context, program Program) (*Server, error) {
	for range portTries - 1 {
		s, err := startOnce(ctx, program)
		if program.Port != 0 || !errors.Is(err, ErrBusy) {
			return s, err
		}
	}
	return startOnce(ctx, program)
}

func startOnce(ctx context.Context, program Program) (*Server, error) {
	dir, err := makeTop(program)
	if err != nil {
		return nil, fmt.Errorf("directory for %s: %w", program.Name, err)
	}

	orphan := program.Orphan
	if orphan == "" {
		orphan = "KILL"
	}

	dog, err := startWatchdog(ctx, dir, orphan)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}

	s := &Server{program: program, dir: dir, dog: dog, port: program.Port}
	if err := s.create(ctx); err != nil {
		return nil, errors.Join(err, s.Stop(ctx))
	}

	return s, nil
}

// create fills the directory and starts the server for the first time.
func (s *Server) create(ctx context.Context) error {
	ports := s.program.MorePorts
	if s.port == 0 {
		ports = append([]*int{&s.port}, ports...)
	}

	if err := freeport.PickAll(ctx, ports...); err != nil {
		return err
	}

	if s.program.Create != nil {
		if err := s.program.Create(ctx, s); err != nil {
			return err
		}
	}

	return s.start(ctx)
}

// makeTop creates the server's directory.
func makeTop(program Program) (string, error) {
	if program.Dir == "" {
		return makeTemp(program)
	}

	dir, err := filepath.Abs(program.Dir)
	if err != nil {
		return "", err
	}

	if err := os.MkdirAll(dir, program.Account.topMode()); err != nil {
		return "", err
	}

	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	if len(entries) > 0 {
		return "", fmt.Errorf("%s is not empty", dir)
	}

	if err := program.Account.CanEnter(dir); err != nil {
		return "", errors.Join(err, os.Remove(dir))
	}
	return dir, nil
}

// makeTemp creates a directory that the account can enter.
func makeTemp(program Program) (string, error) {
	room := uint64(0)
	if program.InMemory {
		room = memoryRoom()
	}

	dir, err := os.MkdirTemp(tempBase(program.Account, room), "notifyd-srv-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, program.Account.topMode())
}

// tempBase returns the directory for the directories of servers, with room for that many bytes in memory.
func tempBase(account Account, room uint64) string {
	if room >= enoughMemory && account.CanEnter(memoryDir) == nil {
		return memoryDir
	}
	if base := os.TempDir(); account.CanEnter(base) == nil {
		return base
	}
	return "/tmp" // root's own TMPDIR is often closed to others
}

// MakeDir creates a directory below [Server.Dir] that belongs to the account.
func (s *Server) MakeDir(name string) error {
	path := filepath.Join(s.dir, name)
	return errors.Join(os.Mkdir(path, 0o700), s.program.Account.own(path))
}

// WriteFile writes a file below [Server.Dir] that belongs to the account, and returns its
// path.
func (s *Server) WriteFile(name string, data []byte) (path string, err error) {
	path = filepath.Join(s.dir, name)
	return path, errors.Join(os.WriteFile(path, data, 0o600), s.program.Account.own(path))
}

// LookPath returns the path of a program, from PATH or from the directories where
// Debian and Homebrew put servers. The error wraps [ErrNotFound] and names cure.
func LookPath(program, cure string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}

	for _, dir := range []string{"/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/opt/homebrew/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
			return path, nil
		}
	}

	return "", fmt.Errorf("%s is %w: %s", program, ErrNotFound, cure)
}

// Port returns the TCP port on 127.0.0.1. It is the same before and after a
// restart.
func (s *Server) Port() int { return s.port }

// Addr returns host and port.
func (s *Server) Addr() string { return Local(s.port) }

// Local returns the address of a port on 127.0.0.1.
func Local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// Dir returns the directory that holds everything of this server.
func (s *Server) Dir() string { return s.dir }

// LogFile returns the path of the server's standard output and error.
func (s *Server) LogFile() string { return filepath.Join(s.dir, "server.log") }

// PID returns the process id of the running server, 0 while it is down.
func (s *Server) PID() int {
	if p := s.proc.Load(); p != nil && !p.exited() {
		return p.pid
	}
	return 0
}
