package destinations

import (
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/internal/config"
)

// Server returns the host and the port of a destination with a single server, without credentials. It returns "" for a
// destination with several servers, and for one whose server the settings do not name, such as a service of a cloud.
// port is 0 if the settings do not name it.
func Server(s config.Settings) (host string, port int) {
	switch s := s.(type) {
	case *kafkaSettings:
		return onlyServer(s.Brokers)
	case *natsSettings:
		return onlyServer(s.Servers)
	case *redisSettings:
		if s.SentinelMaster != "" {
			return "", 0
		}
		if !s.URL.IsZero() {
			return onlyServer([]string{s.URL.Reveal()})
		}
		return onlyServer(s.Addresses)
	case *rabbitmqSettings:
		if !s.URL.IsZero() {
			return onlyServer([]string{s.URL.Reveal()})
		}
		c := s.WithDefaults()
		return c.Host, c.Port
	case *emailSettings:
		c := s.WithDefaults()
		return c.Host, c.Port
	case *postgresSettings:
		return onlyServer([]string{s.URL.Reveal()})
	case *webhookSettings:
		return onlyServer([]string{s.URL})
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
