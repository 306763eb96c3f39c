// Package systemd reports the state of a daemon to the service manager, by the protocol of
// sd_notify(3): a datagram of KEY=VALUE lines to the socket that $NOTIFY_SOCKET names.
package systemd

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// sendTimeout bounds one message. A manager that does not read at once must not
// hold up the daemon.
const sendTimeout = time.Second

// Notifier sends messages to the service manager, or nowhere if none expects
// them. It is safe for concurrent use and needs no closing.
type Notifier struct {
	socket   string // "" sends nowhere
	watchdog time.Duration
}

// New reads $NOTIFY_SOCKET, $WATCHDOG_USEC and $WATCHDOG_PID by lookup. The error
// names the variable that is invalid; the notifier then sends nowhere.
func New(lookup func(name string) (string, bool)) (*Notifier, error) {
	n := &Notifier{}
	socket, _ := lookup("NOTIFY_SOCKET")
	if socket == "" {
		return n, nil
	}

	if socket[0] != '/' && socket[0] != '@' {
		return n, fmt.Errorf("$NOTIFY_SOCKET is %q: neither a path nor an abstract socket, "+
			"so the service manager gets no messages", socket)
	}

	n.socket = socket
	usec, _ := lookup("WATCHDOG_USEC")
	// Children inherit the variable, which is meant for the process $WATCHDOG_PID only.
	if pid, _ := lookup("WATCHDOG_PID"); usec == "" || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return n, nil
	}

	us, err := strconv.ParseInt(usec, 10, 64)
	if err != nil || us <= 0 || us > int64(maxWatchdog/time.Microsecond) {
		return n, fmt.Errorf("$WATCHDOG_USEC is %q: not a number of microseconds, so the watchdog is not fed", usec)
	}

	n.watchdog = time.Duration(us) * time.Microsecond
	return n, nil
}

// maxWatchdog is far beyond any watchdog and fits a duration.
const maxWatchdog = 365 * 24 * time.Hour

// Enabled reports whether a service manager expects messages.
func (n *Notifier) Enabled() bool { return n.socket != "" }

// Watchdog returns the longest interval between two calls of [Notifier.Alive]
// that the manager accepts, 0 without a watchdog. Half of it is a good interval.
func (n *Notifier) Watchdog() time.Duration { return n.watchdog }

// Ready reports that the daemon has started, or has finished reloading.
func (n *Notifier) Ready(ctx context.Context, status string) error {
	return n.send(ctx, "READY=1", "STATUS="+status)
}

// Status replaces the line that "systemctl status" shows.
func (n *Notifier) Status(ctx context.Context, status string) error {
	return n.send(ctx, "STATUS="+status)
}

// Reloading reports that the configuration is being read again; [Notifier.Ready] ends it.
func (n *Notifier) Reloading(ctx context.Context, status string) error {
	return n.send(ctx, "RELOADING=1", "MONOTONIC_USEC="+strconv.FormatInt(monotonicMicroseconds(), 10), "STATUS="+status)
}

// Stopping reports that the daemon is stopping.
func (n *Notifier) Stopping(ctx context.Context, status string) error {
	return n.send(ctx, "STOPPING=1", "STATUS="+status)
}

// Alive keeps the watchdog quiet, if there is one.
func (n *Notifier) Alive(ctx context.Context) error {
	if n.watchdog == 0 {
		return nil
	}
	return n.send(ctx, "WATCHDOG=1")
}

// send sends the lines as one datagram. It also sends after ctx has ended, because the daemon then reports that it is
// stopping.
func (n *Notifier) send(ctx context.Context, lines ...string) (err error) {
	if n.socket == "" {
		return nil
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendTimeout)
	defer cancel()

	conn, err := (&net.Dialer{}).DialContext(ctx, "unixgram", n.socket)
	if err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	defer conn.Close() //nolint:errcheck // a datagram is sent or not

	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetWriteDeadline(deadline) // an error shows in Write
	}

	for i, line := range lines {
		lines[i] = strings.ReplaceAll(line, "\n", " ") // a line is one KEY=VALUE
	}

	if _, err := conn.Write([]byte(strings.Join(lines, "\n"))); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}
