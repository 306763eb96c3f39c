package rabbitserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/notifyd/notifyd/internal/freeport"
)

// The account that every node has, with all rights in the vhost "/". RabbitMQ
// lets it in over the loopback only.
const (
	User     = "guest"
	Password = "guest"
)

// portTries bounds how often Start picks other ports after somebody else took
// one of those it had chosen.
const portTries = 3

// Config describes a node. The zero value is one without TLS.
type Config struct {
	// Settings are lines for rabbitmq.conf, name to value.
	Settings map[string]string
	// TLS opens a second listener that asks clients for a certificate, and lets
	// those who show one in by its common name (EXTERNAL). Nil for none.
	TLS *TLS
}

// TLS names PEM files that the node reads. They are copied into its directory.
type TLS struct {
	// CAFile has the authority that clients' certificates must come from.
	CAFile string
	// CertFile and KeyFile are the node's own certificate and its key.
	CertFile, KeyFile string
}

// Server is a RabbitMQ node. Its methods may be called from several goroutines;
// those that change its state run one after the other. Whoever called [Start]
// must call [Server.Stop].
type Server struct {
	programs programs
	account  account
	dir      string
	dog      *watchdog
	ports    ports // fixed once Start has returned

	mu      sync.Mutex
	epmd    *process // nil while down
	node    *process // nil while down
	stopped bool     // the data is gone
}

// ports are all on 127.0.0.1.
type ports struct{ amqp, tls, dist, epmd int }

var (
	errStopped = errors.New("the node is stopped and its data removed")
	errDown    = errors.New("the node is not running")
	errRunning = errors.New("the node is already running")
)

// Start makes a new node and returns once it takes connections. ctx bounds the
// start, not the life of the node. The error is [ErrNotFound] where RabbitMQ is
// not installed; otherwise it shows the end of the node's log, and nothing is
// left behind.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	programs, err := find()
	if err != nil {
		return nil, err
	}
	for range portTries - 1 {
		s, err := startOnce(ctx, programs, cfg)
		if !errors.Is(err, errPortTaken) {
			return s, err
		}
	}
	return startOnce(ctx, programs, cfg)
}

func startOnce(ctx context.Context, programs programs, cfg Config) (*Server, error) {
	account, err := serverAccount()
	if err != nil {
		return nil, err
	}
	s := &Server{programs: programs, account: account}
	if s.dir, err = makeDir(account); err != nil {
		return nil, err
	}
	if s.dog, err = startWatchdog(ctx, s.dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	err = freeport.PickAll(ctx, &s.ports.amqp, &s.ports.tls, &s.ports.dist, &s.ports.epmd)
	if err == nil {
		err = s.writeConfig(cfg)
	}
	if err == nil {
		err = s.start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// URL returns the AMQP URL of a vhost, "" for the vhost "/". It stays the same
// when the node is started again.
func (s *Server) URL(vhost string) string {
	if vhost == "" {
		vhost = "/"
	}
	u := url.URL{
		Scheme: "amqp", User: url.UserPassword(User, Password), Host: s.Addr(),
		Path: "/" + vhost, RawPath: "/" + url.PathEscape(vhost),
	}
	return u.String()
}

// Addr returns host and port of the listener without TLS.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.ports.amqp)) }

// TLSAddr returns host and port of the listener with TLS, which is there if
// [Config.TLS] was set.
func (s *Server) TLSAddr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.ports.tls)) }

// PID returns the process id of the node, 0 while it is down.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node == nil {
		return 0
	}
	return s.node.pid
}

// LogFile returns the path of the node's log.
func (s *Server) LogFile() string { return filepath.Join(s.dir, "node.log") }

// name is what Erlang knows the node by. It tells two nodes of a machine apart.
func (s *Server) name() string { return "notifyd" + strconv.Itoa(s.ports.amqp) + "@localhost" }

// makeDir makes the directory of a node, which its account can write to.
func makeDir(a account) (dir string, err error) {
	if dir, err = os.MkdirTemp("", "notifyd-rabbitmq-"); err != nil {
		return "", err
	}
	if err := a.own(dir); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

// writeConfig fills the directory.
func (s *Server) writeConfig(cfg Config) error {
	settings := map[string]string{
		"loopback_users.guest": "true",
		// The directory is thrown away, and tests need but a little of it.
		"disk_free_limit.absolute": "20MB",
	}
	plugins := "[]."
	if cfg.TLS != nil {
		plugins = "[rabbitmq_auth_mechanism_ssl]."
		for name, from := range map[string]string{"ca.pem": cfg.TLS.CAFile, "cert.pem": cfg.TLS.CertFile, "key.pem": cfg.TLS.KeyFile} {
			data, err := os.ReadFile(from)
			if err != nil {
				return err
			}
			if err := s.write(name, data); err != nil {
				return err
			}
		}
		maps.Copy(settings, map[string]string{
			"listeners.ssl.1":                  s.TLSAddr(),
			"ssl_options.cacertfile":           filepath.Join(s.dir, "ca.pem"),
			"ssl_options.certfile":             filepath.Join(s.dir, "cert.pem"),
			"ssl_options.keyfile":              filepath.Join(s.dir, "key.pem"),
			"ssl_options.verify":               "verify_peer",
			"ssl_options.fail_if_no_peer_cert": "false",
			"ssl_cert_login_from":              "common_name",
			"auth_mechanisms.1":                "PLAIN",
			"auth_mechanisms.2":                "EXTERNAL",
		})
	}
	maps.Copy(settings, cfg.Settings)
	var conf []byte
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		conf = fmt.Appendf(conf, "%s = %s\n", name, settings[name])
	}
	return errors.Join(s.write("rabbit.conf", conf), s.write("plugins", []byte(plugins+"\n")))
}

// write makes a file that belongs to the account of the node.
func (s *Server) write(name string, data []byte) error {
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil { //nolint:gosec // G703: the names are constants
		return err
	}
	return s.account.own(path)
}
