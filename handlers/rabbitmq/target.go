package rabbitmq

import (
	"cmp"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/internal/field"
)

// target is the address of the broker, with the credentials and the vhost.
type target struct {
	host, port         string
	username, password string
	vhost              string
	encrypted          bool
}

func (t target) addr() string { return net.JoinHostPort(t.host, t.port) }

// target reads the URL, or the settings that stand for one. Its mistakes are
// joined, each a [*handlers.FieldError]; none repeats anything of the URL.
func (c Config) target() (target, error) {
	t := target{
		host:      c.Host,
		username:  c.Username,
		password:  c.Password.Reveal(),
		vhost:     c.Vhost,
		encrypted: c.TLS != nil,
	}

	if c.Port != 0 {
		t.port = strconv.Itoa(c.Port)
	}

	if !c.URL.IsZero() {
		if err := t.parse(c.URL.Reveal()); err != nil {
			return t, err
		}
		if c.TLS != nil && !t.encrypted {
			return t, field.Errorf("tls", "has no effect with an amqp:// url: write amqps://, or take tls out")
		}
	}

	t.host = cmp.Or(t.host, defaultHost)
	t.vhost = cmp.Or(t.vhost, "/")

	if t.port == "" {
		t.port = strconv.Itoa(defaultPort)
		if t.encrypted {
			t.port = strconv.Itoa(defaultPortTLS)
		}
	}

	if t.username == "" && t.password == "" {
		t.username = guest
		t.password = guest
	}

	return t, nil
}

// parse reads an AMQP URL. See https://www.rabbitmq.com/docs/uri-spec.
func (t *target) parse(raw string) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil: // its text holds the URL
		return field.Errorf("url", "is not a URL: write amqp://user:password@host:5672/vhost, with %%40 for @, %%3A "+
			"for : and %%2F for / in any part")
	case u.Scheme != "amqp" && u.Scheme != "amqps":
		return field.Errorf("url", "must begin with amqp:// or amqps://")
	case u.RawQuery != "" || u.Fragment != "":
		return field.Errorf("url", "must have nothing after ? or #: heartbeat, connect_timeout and tls are settings of their own")
	case strings.Contains(strings.TrimPrefix(u.EscapedPath(), "/"), "/"):
		return field.Errorf("url", "has more than one part after the host: write %%2F for a / in the name of the vhost")
	}

	t.encrypted = u.Scheme == "amqps"
	t.host = u.Hostname()
	t.port = u.Port()
	t.vhost = strings.TrimPrefix(u.Path, "/")

	if u.User != nil {
		t.username = u.User.Username()
		t.password, _ = u.User.Password()
	}

	return nil
}
