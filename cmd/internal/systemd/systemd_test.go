package systemd_test

import (
	"crypto/rand"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/cmd/internal/systemd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds the wait for a datagram that was sent already.
const patience = time.Minute

type vars map[string]string

func (v vars) lookup(name string) (string, bool) {
	value, ok := v[name]
	return value, ok
}

// manager listens as systemd does.
func manager(t *testing.T, address string) *net.UnixConn {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func receive(t *testing.T, conn *net.UnixConn) string {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 4096)
	n, err := conn.Read(buffer)
	if err != nil {
		t.Fatal(err)
	}
	return string(buffer[:n])
}

func TestMessages(t *testing.T) {
	t.Parallel()
	addresses := []string{filepath.Join(t.TempDir(), "n")} // a socket's path has room for some 100 bytes
	if runtime.GOOS == "linux" {
		addresses = append(addresses, "@notifyd-test-"+rand.Text()) // an abstract socket
	}
	for _, address := range addresses {
		conn := manager(t, address)
		n, err := systemd.New(vars{"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": strconv.Itoa(os.Getpid())}.lookup)
		if err != nil || !n.Enabled() || n.Watchdog() != 30*time.Second {
			t.Fatalf("%+v, %v", n, err)
		}
		ctx := t.Context()
		check := func(want string, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			if got := receive(t, conn); !regexp.MustCompile("^(?:" + want + ")$").MatchString(got) {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		check("READY=1\nSTATUS=delivering", n.Ready(ctx, "delivering"))
		check("STATUS=two lines", n.Status(ctx, "two\nlines"))
		check("WATCHDOG=1", n.Alive(ctx))
		check(`RELOADING=1\nMONOTONIC_USEC=\d+\nSTATUS=reading`, n.Reloading(ctx, "reading"))
		check("STOPPING=1\nSTATUS=bye", n.Stopping(ctx, "bye"))
		_ = conn.Close()
		if err := n.Alive(ctx); err == nil || !strings.HasPrefix(err.Error(), "notify the service manager: ") {
			t.Errorf("a dead manager: %v", err)
		}
	}
}

func TestNoManager(t *testing.T) {
	t.Parallel()
	n, err := systemd.New(vars{"WATCHDOG_USEC": "1"}.lookup)
	if err != nil || n.Enabled() || n.Watchdog() != 0 || n.Ready(t.Context(), "x") != nil || n.Alive(t.Context()) != nil {
		t.Errorf("%+v, %v", n, err)
	}
	n, err = systemd.New(vars{"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"}.lookup)
	if err != nil || n.Watchdog() != 0 || n.Alive(t.Context()) != nil {
		t.Errorf("another process's watchdog: %+v, %v", n, err)
	}
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		env  vars
		want string
	}{
		{vars{"NOTIFY_SOCKET": "vsock:2:1"}, "$NOTIFY_SOCKET"},
		{vars{"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"}, "$WATCHDOG_USEC"},
		{vars{"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "-5"}, "$WATCHDOG_USEC"},
		{vars{"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "9223372036854775807"}, "$WATCHDOG_USEC"},
	} {
		if n, err := systemd.New(c.env.lookup); err == nil || !strings.Contains(err.Error(), c.want) || n == nil || n.Watchdog() != 0 {
			t.Errorf("%v: %v", c.env, err)
		}
	}
}
