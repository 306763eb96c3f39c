package redis

import (
	"errors"
	"net/url"
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/hostport"
	"github.com/notifyd/notifyd/internal/field"
)

// endpoint is the address of Redis and the user, from the URL or the other fields.
type endpoint struct {
	addresses []string // host:port
	username  string
	password  handlers.Secret
	database  int
	tls       *handlers.TLS // nil: without
}

// endpoint returns the endpoint of c, and the mistakes in it, joined.
func (c Config) endpoint() (endpoint, error) {
	e := endpoint{username: c.Username, password: c.Password, database: c.Database, tls: c.TLS}

	switch {
	case c.URL.IsZero() && len(c.Addresses) == 0:
		return e, field.Errorf("url", "missing: write redis://redis.example.com:6379, or name addresses")
	case !c.URL.IsZero() && len(c.Addresses) > 0:
		return e, field.Errorf("addresses", "url is set too: take one of them out")
	case !c.URL.IsZero():
		return e, e.readURL(c)
	}

	port := defaultPort
	if c.SentinelMaster != "" {
		port = defaultSentinelPort
	}

	var errs []error
	for i, addr := range c.Addresses {
		if err := hostport.Check(addr, "redis.example.com:"+port); err != nil {
			errs = append(errs, field.Errorf("addresses."+strconv.Itoa(i), "%w", err))
			continue
		}
		e.addresses = append(e.addresses, hostport.WithPort(addr, port))
	}

	if len(c.Addresses) > 1 && !c.Cluster && c.SentinelMaster == "" {
		errs = append(errs, field.Errorf("addresses", "several need cluster: true, or the name of a sentinel_master"))
	}

	return e, errors.Join(errs...)
}

// readURL fills in the parts of the URL. No error repeats the URL.
func (e *endpoint) readURL(c Config) error {
	const want = "redis://user:password@host:6379/0" //nolint:gosec // an example, and no credentials
	u, err := url.Parse(c.URL.Reveal())
	if err != nil {
		return field.Errorf("url", "is not a URL: write %s, with %%40 for an @ in the password and so on", want)
	}

	var errs []error
	wrong := func(path, format string, args ...any) { errs = append(errs, field.Errorf(path, format, args...)) }

	switch {
	case u.Scheme != "redis" && u.Scheme != "rediss":
		wrong("url", "must begin with redis:// or rediss://")
	case u.Hostname() == "":
		wrong("url", "names no host: write %s", want)
	case u.RawQuery != "" || u.Fragment != "":
		wrong("url", "must not have options behind a ?: they are settings of their own here")
	case u.Scheme == "redis" && c.TLS != nil:
		wrong("tls", "the URL begins with redis://, which is without TLS: write rediss://, or take tls out")
	}

	if err := hostport.Check(u.Host, "redis.example.com:"+defaultPort); err != nil && u.Hostname() != "" {
		wrong("url", "%w", err)
	}

	e.addresses = []string{hostport.WithPort(u.Host, defaultPort)}
	if u.Scheme == "rediss" && e.tls == nil {
		e.tls = &handlers.TLS{}
	}

	if u.User != nil {
		if c.Username != "" || !c.Password.IsZero() {
			wrong("username", "the URL has a user or a password too: take one of them out")
		}

		password, _ := u.User.Password()
		e.username = u.User.Username()
		e.password = handlers.NewSecret(password)
	}

	if path := strings.Trim(u.Path, "/"); path != "" {
		n, err := strconv.Atoi(path)
		if err != nil {
			wrong("url", "must end with the number of a database: %s", want)
		} else if c.Database != 0 && c.Database != n {
			wrong("database", "the URL names another one: take one of them out")
		}

		e.database = n
	}

	return errors.Join(errs...)
}
