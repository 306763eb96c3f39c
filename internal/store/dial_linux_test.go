package store

import (
	"context"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// TestVanishedPeerIsNoticed: every connection has the timers that detect it, on both sides.
func TestVanishedPeerIsNoticed(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	conn, err := d.Connect(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer Close(context.WithoutCancel(t.Context()), conn)
	tcp, ok := conn.PgConn().Conn().(*net.TCPConn)
	if !ok {
		t.Skipf("the connection is a %T", conn.PgConn().Conn())
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for name, option := range map[string]struct{ level, name, want int }{
		"SO_KEEPALIVE":     {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		"TCP_KEEPIDLE":     {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepAliveIdle.Seconds())},
		"TCP_KEEPINTVL":    {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepAliveInterval.Seconds())},
		"TCP_KEEPCNT":      {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAliveCount},
		"TCP_USER_TIMEOUT": {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds())},
	} {
		var got int
		var optErr error
		if err := raw.Control(func(fd uintptr) { got, optErr = unix.GetsockoptInt(int(fd), option.level, option.name) }); err != nil {
			t.Fatal(err)
		}
		if optErr != nil || got != option.want {
			t.Errorf("%s is %d, %v; want %d", name, got, optErr, option.want)
		}
	}
	for name, want := range map[string]string{
		"tcp_keepalives_idle": "5", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3", "tcp_user_timeout": "10000",
	} {
		var got string
		if err := conn.QueryRow(t.Context(), `SELECT current_setting($1)`, name).Scan(&got); err != nil || got != want {
			t.Errorf("%s of the server is %q, %v; want %q", name, got, err, want)
		}
	}
}
