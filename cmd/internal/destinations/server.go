package destinations

import (
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/handlers/email"
	"github.com/notifyd/notifyd/handlers/rabbitmq"
	"github.com/notifyd/notifyd/handlers/redis"
)

// traced is implemented by settings of destinations outside of the process.
type traced interface {
	servers() []string
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
	return onlyServer(d.servers())
}

// redisServers returns the servers of a Redis. Sentinels name the server themselves.
func redisServers(c redis.Config) []string {
	switch {
	case c.SentinelMaster != "":
		return nil
	case !c.URL.IsZero():
		return []string{c.URL.Reveal()}
	default:
		return c.Addresses
	}
}

func rabbitmqServers(c rabbitmq.Config) []string {
	if !c.URL.IsZero() {
		return []string{c.URL.Reveal()}
	}

	c = c.WithDefaults()
	return []string{net.JoinHostPort(c.Host, strconv.Itoa(c.Port))}
}

func emailServers(c email.Config) []string {
	c = c.WithDefaults()
	return []string{net.JoinHostPort(c.Host, strconv.Itoa(c.Port))}
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
