package rabbitserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
)

// The default account of every node, with all rights in the vhost "/". RabbitMQ accepts it
// over the loopback only.
const (
	User     = "guest"
	Password = "guest"
)

// homeDir is the directory of the node, below that of the server.
const homeDir = "node"

// Config describes a node. The zero value is a node without TLS.
type Config struct {
	// Settings are lines for rabbitmq.conf, name to value.
	Settings map[string]string
	// TLS opens a second listener that asks clients for a certificate, whose common name
	// is the user (EXTERNAL). Nil for none.
	TLS *TLS
}

// TLS names PEM files that the node reads. They are copied into its directory.
type TLS struct {
	// CAFile has the authority of clients' certificates.
	CAFile string
	// CertFile and KeyFile are the node's own certificate and its key.
	CertFile, KeyFile string
}

// Server is a RabbitMQ node. The caller of [Start] calls Stop.
type Server struct {
	*privateserver.Server

	cfg             Config
	programs        programs
	tls, dist, epmd int // ports, fixed once Start has returned
}

// Start starts a new node and returns once it accepts connections and commands. ctx bounds the start,
// not the life of the node.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	programs, err := find()
	if err != nil {
		return nil, err
	}

	account, err := privateserver.Unprivileged("rabbitmq") // of Debian's package
	if err != nil {
		return nil, err
	}

	r := &Server{cfg: cfg, programs: programs}
	r.Server, err = privateserver.Start(ctx, privateserver.Program{
		Name:      "RabbitMQ",
		Account:   account,
		MorePorts: []*int{&r.tls, &r.dist, &r.epmd},
		Env:       r.environment,
		Create:    r.writeConfig,
		Command:   r.command,
		Ask:       ask,
	})
	if err != nil {
		return nil, err
	}

	// The node takes connections before it counts as started. Until then most commands of rabbitmqctl refuse to run.
	if _, err := r.Ctl(ctx, "await_startup"); err != nil {
		return nil, errors.Join(err, r.Stop(context.WithoutCancel(ctx)))
	}
	return r, nil
}

// URL returns the AMQP URL of a vhost, "" for the vhost "/". It stays the same
// when the node is started again.
func (r *Server) URL(vhost string) string { return vhostURL(r.Addr(), vhost) }

func vhostURL(addr, vhost string) string {
	vhost = cmp.Or(vhost, "/")
	u := url.URL{
		Scheme: "amqp", User: url.UserPassword(User, Password), Host: addr,
		Path: "/" + vhost, RawPath: "/" + url.PathEscape(vhost),
	}
	return u.String()
}

// TLSAddr returns host and port of the listener of [Config.TLS]. Addr returns host and port of the listener without TLS.
func (r *Server) TLSAddr() string { return privateserver.Local(r.tls) }

// writeConfig writes the configuration of the node.
func (r *Server) writeConfig(_ context.Context, s *privateserver.Server) error {
	write := func(name string, data []byte) error {
		_, err := s.WriteFile(filepath.Join(homeDir, name), data)
		return err
	}

	if err := s.MakeDir(homeDir); err != nil {
		return err
	}

	settings := map[string]string{
		"loopback_users.guest": "true",
		// Tests need little space; the default stops a node on a nearly full disk.
		"disk_free_limit.absolute": "20MB",
	}

	plugins := "[]."
	if r.cfg.TLS != nil {
		plugins = "[rabbitmq_auth_mechanism_ssl]."
		files := map[string]string{
			"ca.pem":   r.cfg.TLS.CAFile,
			"cert.pem": r.cfg.TLS.CertFile,
			"key.pem":  r.cfg.TLS.KeyFile,
		}
		for name, from := range files {
			data, err := os.ReadFile(from)
			if err != nil {
				return err
			}
			if err := write(name, data); err != nil {
				return err
			}
		}

		maps.Copy(settings, map[string]string{
			"listeners.ssl.1":                  r.TLSAddr(),
			"ssl_options.cacertfile":           filepath.Join(s.Dir(), homeDir, "ca.pem"),
			"ssl_options.certfile":             filepath.Join(s.Dir(), homeDir, "cert.pem"),
			"ssl_options.keyfile":              filepath.Join(s.Dir(), homeDir, "key.pem"),
			"ssl_options.verify":               "verify_peer",
			"ssl_options.fail_if_no_peer_cert": "false",
			"ssl_cert_login_from":              "common_name",
			"auth_mechanisms.1":                "PLAIN",
			"auth_mechanisms.2":                "EXTERNAL",
		})
	}

	maps.Copy(settings, r.cfg.Settings)
	var conf []byte
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		conf = fmt.Appendf(conf, "%s = %s\n", name, settings[name])
	}

	return errors.Join(write("rabbit.conf", conf), write("plugins", []byte(plugins+"\n")))
}
