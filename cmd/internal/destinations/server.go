package destinations

import (
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/handlers/email"
	"github.com/notifyd/notifyd/handlers/kafka"
	"github.com/notifyd/notifyd/handlers/nats"
	"github.com/notifyd/notifyd/handlers/postgres"
	"github.com/notifyd/notifyd/handlers/rabbitmq"
	"github.com/notifyd/notifyd/handlers/redis"
	"github.com/notifyd/notifyd/handlers/webhook"
)

// traced is implemented by settings of destinations outside of the process.
type traced interface {
	handlerConfig() any
	messagingSystem() string
}

// MessagingSystem returns the name of a destination's type in the semantic conventions. It returns "" for the others:
// https://opentelemetry.io/docs/specs/semconv/registry/attributes/messaging/
func MessagingSystem(s config.Settings) string {
	if d, ok := s.(traced); ok {
		return d.messagingSystem()
	}
	return ""
}

// Server returns the host and the port of a destination with a single server, without credentials. It returns "" for a
// destination with several servers, and for one whose server the settings do not name, such as a service of a cloud.
// port is 0 if the settings do not name it.
func Server(s config.Settings) (host string, port int) {
	d, ok := s.(traced)
	if !ok {
		return "", 0
	}
	return serverOf(d.handlerConfig())
}

// serverOf is [Server] for the Config of a handler.
func serverOf(handlerConfig any) (host string, port int) {
	switch c := handlerConfig.(type) {
	case kafka.Config:
		return onlyServer(c.Brokers)
	case nats.Config:
		return onlyServer(c.Servers)
	case redis.Config:
		if c.SentinelMaster != "" {
			return "", 0
		}

		if !c.URL.IsZero() {
			return onlyServer([]string{c.URL.Reveal()})
		}
		return onlyServer(c.Addresses)
	case rabbitmq.Config:
		if !c.URL.IsZero() {
			return onlyServer([]string{c.URL.Reveal()})
		}

		c = c.WithDefaults()
		return c.Host, c.Port
	case email.Config:
		c = c.WithDefaults()
		return c.Host, c.Port
	case postgres.Config:
		return onlyServer([]string{c.URL.Reveal()})
	case webhook.Config:
		return onlyServer([]string{c.URL})
	default:
		return "", 0
	}
}

// onlyServer returns the host and the port of the only address, which is a URL, a host, or a host and a port.
func onlyServer(addresses []string) (host string, port int) {
	if len(addresses) != 1 {
		return "", 0
	}
	host = addresses[0]
	if strings.Contains(host, "://") {
		u, err := url.Parse(host)
		if err != nil || u.User == nil && strings.Contains(host, "@") { // the host may be a part of a password with a slash
			return "", 0
		}
		host = u.Host
	}
	if strings.ContainsAny(host, ",{=@/ ") { // several hosts, a template, or another form
		return "", 0
	}
	if name, digits, err := net.SplitHostPort(host); err == nil {
		n, err := strconv.Atoi(digits)
		if err != nil {
			return "", 0
		}
		return name, n
	}
	return strings.Trim(host, "[]"), 0
}
