package store

import (
	"context"
	"net"
	"syscall"
	"time"
)

// The timeouts that detect a vanished peer: a machine without power, a firewall that dropped the
// connection. With the kernel's defaults, that takes two hours on an idle connection, and a quarter
// of an hour on a busy one.
const (
	// keepAliveIdle is how long a connection may be silent before it is probed.
	keepAliveIdle = 5 * time.Second
	// keepAliveInterval is the time between probes.
	keepAliveInterval = 2 * time.Second
	// keepAliveCount is how many probes may go unanswered.
	keepAliveCount = 3
	// userTimeout bounds how long sent data, probes included, may stay unacknowledged. It is
	// TCP_USER_TIMEOUT of Linux.
	userTimeout = 10 * time.Second
)

// dialer dials connections that break when their peer has vanished.
func dialer() *net.Dialer {
	return &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount},
		ControlContext: func(_ context.Context, network, _ string, c syscall.RawConn) error {
			switch network {
			case "tcp", "tcp4", "tcp6":
				return setUserTimeout(c, userTimeout)
			default: // a socket of the same machine
				return nil
			}
		},
	}
}
