package store

import (
	"context"
	"net"
	"syscall"
	"time"
)

// These timeouts detect a vanished peer: a machine without power, or a firewall that dropped the connection. The
// kernel's defaults take two hours on an idle connection, and a quarter of an hour on a busy one.
const (
	// keepAliveIdle is how long a connection may be silent before a probe.
	keepAliveIdle = 5 * time.Second
	// keepAliveInterval is the time between probes.
	keepAliveInterval = 2 * time.Second
	// keepAliveCount is how many probes may stay unanswered.
	keepAliveCount = 3
	// userTimeout bounds how long sent data, including probes, may stay unacknowledged: TCP_USER_TIMEOUT of Linux.
	userTimeout = 10 * time.Second
)

// dialer returns a dialer of connections that break when their peer has vanished.
func dialer() *net.Dialer {
	return &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount},
		ControlContext: func(_ context.Context, network, _ string, c syscall.RawConn) error {
			switch network {
			case "tcp", "tcp4", "tcp6":
				return setUserTimeout(c, userTimeout)
			default: // a local socket
				return nil
			}
		},
	}
}
