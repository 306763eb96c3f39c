package kafkaserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/notifyd/notifyd/internal/freeport"
	"github.com/notifyd/notifyd/internal/watchdog"
)

// portTries bounds how often Start picks other ports after somebody else took
// one of those that it had chosen.
const portTries = 3

// Config describes a server. The zero value is a small one without any security.
type Config struct {
	// Programs are what to run; the zero value is what [Find] finds.
	Programs Programs
	// Properties are further lines of server.properties, or replace some of ours.
	Properties map[string]string
	// Secure opens a second listener for clients; see [Server.SecureAddr].
	Secure Secure
	// Tuned runs the server as one in production, with the JVM's own compiler and
	// collector and a heap of 1 GiB. Otherwise it has 256 MiB, and starts faster.
	Tuned bool
}

// Secure is how clients are to reach the second listener. The first one stays
// open to everybody, whose name is then User:ANONYMOUS.
type Secure struct {
	// Users are names and passwords, for PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512.
	// OAUTHBEARER takes unsigned tokens of anybody. Nil is a listener without SASL.
	Users map[string]string
	// KeyStore is a PEM file with the key and the certificate chain of the server,
	// "" for a listener without TLS.
	KeyStore string
	// TrustStore is a PEM file with the authorities of clients' certificates,
	// which are asked for then. "" asks for none.
	TrustStore string
}

// protocol returns Kafka's word for it, "" for no second listener.
func (s Secure) protocol() string {
	switch {
	case s.Users != nil && s.KeyStore != "":
		return "SASL_SSL"
	case s.Users != nil:
		return "SASL_PLAINTEXT"
	case s.KeyStore != "":
		return "SSL"
	default:
		return ""
	}
}

// Server is a running private Kafka. Its methods may be called from several
// goroutines. Whoever called [Start] must call [Server.Stop].
type Server struct {
	cfg     Config
	dir     string
	cluster string // id
	dog     *watchdog.Watchdog

	plain, controller, secure int // ports, fixed once Start has returned

	mu      sync.Mutex
	proc    *process // nil while the server is down
	stopped bool     // the data is gone
}

// Start makes a new server in a temporary directory and returns once it takes
// part in its cluster of one. ctx bounds the start, not the life of the server.
// The error tells what the server itself said; nothing is left behind then.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Programs == (Programs{}) {
		var err error
		if cfg.Programs, err = Find(); err != nil {
			return nil, err
		}
	}
	dir, err := os.MkdirTemp("", "notifyd-kafka-")
	if err != nil {
		return nil, fmt.Errorf("directory for Kafka: %w", err)
	}
	dog, err := watchdog.Start(ctx, dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s := &Server{cfg: cfg, dir: dir, dog: dog, cluster: clusterID()}
	if err := s.create(ctx); err != nil {
		return nil, errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// create formats the directory and starts the server for the first time. The
// ports are written into what is formatted.
func (s *Server) create(ctx context.Context) error {
	var err error
	for range portTries {
		if err = freeport.PickAll(ctx, &s.plain, &s.controller, &s.secure); err != nil {
			return err
		}
		if err = os.RemoveAll(s.dataDir()); err != nil {
			return err
		}
		if err = s.format(ctx); err != nil {
			return err
		}
		if err = s.start(ctx); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

// Addr returns host and port of the listener that is open to everybody. It is the
// same before and after a restart.
func (s *Server) Addr() string { return local(s.plain) }

// SecureAddr returns host and port of the listener that [Config.Secure] asks for.
func (s *Server) SecureAddr() string { return local(s.secure) }

// LogFile returns the path of what the server wrote to its standard output:
// errors, and nothing else.
func (s *Server) LogFile() string { return filepath.Join(s.dir, "server.log") }

// PID returns the process id of the running server, 0 while it is down.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || s.proc.exited() {
		return 0
	}
	return s.proc.cmd.Process.Pid
}

// Programs returns what the server is run with; its directory of jars holds the
// tools of Kafka as well.
func (s *Server) Programs() Programs { return s.cfg.Programs }

func (s *Server) dataDir() string { return filepath.Join(s.dir, "data") }

func (s *Server) propertiesFile() string { return filepath.Join(s.dir, "server.properties") }

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// classPath names all jars; java itself expands the star.
func (p Programs) classPath() string { return filepath.Join(p.Lib, "*") }

// lastLines returns the end of a text, for an error.
func lastLines(text []byte) string {
	const most = 2048
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return strings.TrimSpace(string(text))
}
