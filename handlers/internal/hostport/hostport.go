// Package hostport reads addresses of servers.
package hostport

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// WithPort returns addr, a host or host:port, with the given port if addr has no
// port.
func WithPort(addr, port string) string {
	if _, _, err := net.SplitHostPort(addr); err == nil {
		return addr
	}
	return net.JoinHostPort(strings.Trim(addr, "[]"), port)
}

// Check wants a host, or host:port. The error names example, and does not repeat addr.
func Check(addr, example string) error {
	host, port, err := net.SplitHostPort(WithPort(addr, "1"))
	n, portErr := strconv.Atoi(port)

	switch {
	case strings.Contains(addr, "://"):
		return errors.New("must be host:port alone: leave out :// and what comes before")
	case strings.Contains(addr, ","):
		return errors.New("must be one address: write several as a list")
	case err != nil || host == "" || strings.ContainsAny(host, "/@ \t\r\n"):
		return fmt.Errorf("must be host:port, such as %s", example)
	case portErr != nil || n < 1 || n > 65535:
		return errors.New("must have a port of 1 to 65535")
	default:
		return nil
	}
}

// CheckHost wants a host alone, and takes "" for one that has a default.
func CheckHost(host string) error {
	if net.ParseIP(host) == nil && strings.ContainsAny(host, "/: \t\r\n") {
		return errors.New("must be a name or an address alone: put the port into port")
	}
	return nil
}

// IsLoopback reports whether host is this machine, so that its traffic cannot be read on
// the way.
func IsLoopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// IsRemote reports whether the server at host:port may be another machine. It is false for
// addresses that Check refuses.
func IsRemote(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && !IsLoopback(host)
}
