package store

import (
	"context"
	"net"
	"syscall"
	"time"
)

// How soon a peer is noticed that has vanished without a word: a machine that
// lost its power, a firewall that forgot the connection. The kernel's defaults
// take two hours where nothing is sent, and a quarter of an hour where something is.
const (
	// keepAliveIdle is how long a connection may be silent before it is probed.
	keepAliveIdle = 5 * time.Second
	// keepAliveInterval is between the probes.
	keepAliveInterval = 2 * time.Second
	// keepAliveCount is how many probes may go unanswered.
	keepAliveCount = 3
	// userTimeout bounds how long what was sent, probes included, may stay
	// without an acknowledgement. It is TCP_USER_TIMEOUT, which Linux has.
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
