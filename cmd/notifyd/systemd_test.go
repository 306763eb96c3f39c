package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// manage listens as systemd does, and returns what a unit finds in its
// environment, and what it says, datagram by datagram.
func manage(t *testing.T) (env vars, said <-chan string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "n") // a socket's path has room for some 100 bytes
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	lines, ended := make(chan string, 10_000), make(chan struct{})
	go func() {
		defer close(ended)
		buffer := make([]byte, 4096)
		for {
			n, err := conn.Read(buffer)
			if err != nil {
				return // closed
			}
			lines <- string(buffer[:n])
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-ended
	})
	return vars{"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "50000", "WATCHDOG_PID": strconv.Itoa(os.Getpid())}, lines
}

// hear waits for a datagram with this text, and returns those before it.
func hear(t *testing.T, said <-chan string, want string) (before []string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case line := <-said:
			if strings.Contains(line, want) {
				return before
			}
			before = append(before, line)
		case <-deadline:
			t.Fatalf("%q was not said, but %q", want, before)
		}
	}
}

func TestSystemd(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	env, said := manage(t)
	path := file(t, fmt.Sprintf("version: 1\ndatabase: {url: '%s'}\ndestinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\n", url))
	// A relay that gives up sends STOPPING too, and was never ready.
	if got := commandIn(t, env, "run", "-c", path); got.code != 1 || !strings.Contains(got.stderr, "notifyd migrate") {
		t.Fatalf("%+v", got)
	}
	if before := hear(t, said, "STOPPING=1"); slices.ContainsFunc(before, func(s string) bool { return strings.Contains(s, "READY") }) {
		t.Errorf("it said %q", before)
	}
	if got := invoke(t, "migrate", "-c", path); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	d := startDaemon(t, env, "run", "-c", path)
	hear(t, said, "STATUS=waiting for the database")
	hear(t, said, "READY=1\nSTATUS=delivering")
	hear(t, said, "WATCHDOG=1")
	d.stop()
	hear(t, said, "STOPPING=1")
	if code := d.wait(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, d.stderr.text())
	}
}

// TestSystemdDeaf: a manager that cannot be notified is logged once, and delivery goes on.
func TestSystemdDeaf(t *testing.T) {
	t.Parallel()
	url := database(t)
	path := file(t, fmt.Sprintf("version: 1\ndatabase: {url: '%s'}\ndestinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\n", url))
	d := startDaemon(t, vars{"NOTIFY_SOCKET": filepath.Join(t.TempDir(), "nobody"), "WATCHDOG_USEC": "1000"}, "run", "-c", path)
	publishTo(t, url, "order.placed", order)
	until(t, url, "SELECT state = 'done' FROM outbox_events")
	if code := d.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if n := strings.Count(d.stderr.text(), "service manager not notified"); n != 1 {
		t.Errorf("said %d times:\n%s", n, d.stderr.text())
	}
	d = startDaemon(t, vars{"NOTIFY_SOCKET": "vsock:2:1"}, "run", "-c", path)
	d.stderr.await(t, "neither a path nor an abstract socket")
}
