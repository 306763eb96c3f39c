package outboxes

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/cmd/internal/config"
)

// trustedHosts are the hosts of database servers that the file names, in lower case. The value reports whether the
// file also connects to that host without TLS.
type trustedHosts map[string]bool

// hostsOf returns the hosts that rows of the query may name: those of the connection strings in the file, and those
// of outboxes.hosts.
func hostsOf(c *config.Config) (trustedHosts, error) {
	hosts := make(trustedHosts)
	for _, name := range c.Outboxes.Hosts {
		hosts[strings.ToLower(name)] = false
	}

	all := []*config.Config{c}
	for i := range c.Outboxes.List {
		if o := &c.Outboxes.List[i]; !o.URL.IsZero() {
			all = append(all, c.For(o))
		}
	}

	for _, one := range all {
		cfg, err := Parse(&one.Database, one.DatabaseSetting("url"))
		if err != nil {
			return nil, err
		}
		for _, to := range attempts(cfg) {
			host := strings.ToLower(to.Host)
			hosts[host] = hosts[host] || to.TLSConfig == nil
		}
	}

	return hosts, nil
}

// attempts are the servers that pgx tries in turn, with and without TLS.
func attempts(cfg *pgx.ConnConfig) []*pgconn.FallbackConfig {
	first := &pgconn.FallbackConfig{Host: cfg.Host, Port: cfg.Port, TLSConfig: cfg.TLSConfig}
	return append([]*pgconn.FallbackConfig{first}, cfg.Fallbacks...)
}

// check returns an error for a row that would send a password of this daemon where the file does not send one. Who may
// write the table behind the query chooses the row: its url has a user, a host, a database and perhaps a password,
// and nothing that names a file or weakens TLS.
func (hosts trustedHosts) check(o *config.Outbox) error {
	if o.URL.IsZero() {
		return nil // the host of database.url
	}

	text := o.URL.Reveal()
	if scheme, _, isURL := strings.Cut(text, "://"); !isURL || !strings.HasPrefix(scheme, "postgres") {
		return errors.New("its url has to be like postgres://user@host:5432/database")
	}

	_, query, _ := strings.Cut(text, "?")
	given, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("the parameters of its url cannot be parsed")
	}
	for key := range given {
		if key != "sslmode" {
			return fmt.Errorf("its url has the parameter %q: the only one that a row may have is sslmode", key)
		}
	}

	cfg, err := ParseURL(config.Mistake{File: "its url"}, text, pgx.ParseConfig)
	if err != nil {
		return err
	}

	for _, to := range attempts(cfg) {
		plain, known := hosts[strings.ToLower(to.Host)]
		switch {
		case !known:
			return fmt.Errorf("the host %q of its url is in no connection string of the file: add it to outboxes.hosts", to.Host)
		case to.TLSConfig == nil && !plain && !local(to.Host):
			return fmt.Errorf("its url connects to %q without TLS: add ?sslmode=verify-full", to.Host)
		}
	}
	return nil
}

// local reports whether a host is this machine.
func local(host string) bool {
	ip := net.ParseIP(host)
	isSocket := strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@")
	isLoopback := ip != nil && ip.IsLoopback()
	return host == "localhost" || isSocket || isLoopback
}
