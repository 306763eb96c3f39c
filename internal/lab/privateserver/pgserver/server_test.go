package pgserver

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/freeport"
	"github.com/notifyd/notifyd/internal/lab/privateserver"
)

func TestStartAndStop(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := startServer(t, Config{Log: &log, Settings: map[string]string{
		"max_connections":  "37",
		"application_name": `it's a \ test`,
	}})
	conn := connect(t, s.URL(""))
	for query, want := range map[string]string{
		"SHOW max_connections":         "37",
		"SHOW application_name":        `it's a \ test`,
		"SHOW fsync":                   "off",
		"SHOW listen_addresses":        "127.0.0.1",
		"SHOW server_encoding":         "UTF8",
		"SHOW lc_collate":              "C",
		"SHOW server_version":          s.Version(),
		"SHOW unix_socket_directories": filepath.Join(s.Dir(), "socket"),
	} {
		if query == "SHOW lc_collate" {
			query = "SELECT datcollate FROM pg_database WHERE datname = 'postgres'"
		}
		if got := queryText(t, conn, query); got != want {
			t.Errorf("%s = %q, want %q", query, got, want)
		}
	}
	if !strings.Contains(log.String(), s.Dir()) {
		t.Errorf("progress = %q, want a line with the directory", log.String())
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Errorf("second Stop = %v, want nil", err)
	}
	if err := s.Start(t.Context()); !errors.Is(err, privateserver.ErrStopped) {
		t.Errorf("Start after Stop = %v, want %v", err, privateserver.ErrStopped)
	}
}

func TestSocketIsReachable(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	conn := connect(t, "host="+socketDir(s.Server)+" port="+strconv.Itoa(s.Port())+" user=postgres dbname=postgres")
	if got := queryText(t, conn, "SELECT 'here'"); got != "here" {
		t.Errorf("answer over the socket = %q", got)
	}
}

func TestKillKeepsCommittedData(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	url := s.URL("")
	conn := connect(t, url)
	exec1(t, conn, "CREATE TABLE kept (id int)")
	exec1(t, conn, "INSERT INTO kept SELECT generate_series(1, 1000)")
	if err := s.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(t.Context()); !errors.Is(err, privateserver.ErrDown) {
		t.Errorf("second Kill = %v, want %v", err, privateserver.ErrDown)
	}
	if _, err := conn.Exec(t.Context(), "SELECT 1"); err == nil {
		t.Error("a connection survived the crash")
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); !errors.Is(err, privateserver.ErrRunning) {
		t.Errorf("second Start = %v, want %v", err, privateserver.ErrRunning)
	}
	if s.URL("") != url {
		t.Errorf("URL = %s, want the same as before, %s", s.URL(""), url)
	}
	if got := queryText(t, connect(t, url), "SELECT count(*)::text FROM kept"); got != "1000" {
		t.Errorf("%s rows after the crash, want 1000", got)
	}
}

func TestRestart(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	conn := connect(t, s.URL(""))
	exec1(t, conn, "ALTER SYSTEM SET wal_level = logical")
	for _, mode := range []Mode{Fast, Immediate} {
		if err := s.Restart(t.Context(), mode); err != nil {
			t.Fatalf("Restart(%d) = %v", mode, err)
		}
	}
	again := connect(t, s.URL(""))
	if got := queryText(t, again, "SHOW wal_level"); got != "logical" {
		t.Errorf("wal_level = %q, want what ALTER SYSTEM set", got)
	}
	// Smart waits for this session: the context ends the wait.
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := s.Halt(ctx, Smart); !errors.Is(err, privateserver.ErrForced) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Halt(Smart) with a session = %v, want %v", err, privateserver.ErrForced)
	}
	if err := s.Halt(t.Context(), Fast); !errors.Is(err, privateserver.ErrDown) {
		t.Errorf("Halt of a dead server = %v, want %v", err, privateserver.ErrDown)
	}
	if err := s.Restart(t.Context(), Fast); err != nil {
		t.Errorf("Restart of a dead server = %v, want nil", err)
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	conn := connect(t, s.URL(""))
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "SELECT 1")
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Fatalf("a paused server answered, %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := pgx.Connect(ctx, s.URL("")); err == nil {
		t.Error("a paused server took a new connection")
	}
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Errorf("the session after Resume: %v", err)
	}
}

func TestStopOfAPausedServer(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestStopWithACancelledContextKills(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Stop(ctx); err != nil {
		t.Error(err)
	}
	if s.PID() != 0 {
		t.Error("the server still runs")
	}
}

// TestOwnDirAndPort also covers a durable server.
func TestOwnDirAndPort(t *testing.T) {
	t.Parallel()
	port, err := freeport.Pick(t.Context()) // gives the port to no other process
	if err != nil {
		t.Fatal(err)
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(openTempDir(t), "server")
	cfg := Config{BinDir: requirePrograms(t), Dir: dir, Port: port}
	if _, err := Start(t.Context(), cfg); !errors.Is(err, privateserver.ErrBusy) || !strings.Contains(err.Error(), "could not bind") {
		t.Errorf("Start on a port in use = %v, want %v with the server's words", err, privateserver.ErrBusy)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat %s after a failed Start: %v, want that it does not exist", dir, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// A child that a parallel test is forking may still hold the socket.
	eventually(t, "the port is free", func() bool {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	s := startServer(t, Config{Dir: dir, Port: port, Durable: true})
	if s.Port() != port || s.Dir() != dir {
		t.Errorf("port %d in %s, want %d in %s", s.Port(), s.Dir(), port, dir)
	}
	if got := queryText(t, connect(t, s.URL("")), "SHOW fsync"); got != "on" {
		t.Errorf("fsync = %s for a durable server, want on", got)
	}
	cfg.Port = 0
	if _, err := Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("Start in a directory in use = %v, want that it is not empty", err)
	}
}

// TestClosedDir: as root, a directory must also be open to the server's account.
func TestClosedDir(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("the server runs as ourselves")
	}
	dir := filepath.Join(t.TempDir(), "server")
	_, err := Start(t.Context(), Config{BinDir: requirePrograms(t), Dir: dir})
	if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "is closed to the account") {
		t.Errorf("Start = %v, want that the directory is closed", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat %s after a failed Start: %v, want that it does not exist", dir, err)
	}
}

func TestStartQuotesTheServer(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]struct {
		settings map[string]string
		want     string
	}{
		"unknown":    {map[string]string{"no_such_thing": "1"}, "unrecognized configuration parameter"},
		"wrong":      {map[string]string{"max_connections": "many"}, "invalid value for parameter"},
		"bad name":   {map[string]string{"a = 1\nb": "1"}, "not the name of a PostgreSQL parameter"},
		"many lines": {map[string]string{"search_path": "a\nb"}, "cannot span lines"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Start(t.Context(), Config{BinDir: requirePrograms(t), Settings: set.settings})
			if err == nil || !strings.Contains(err.Error(), set.want) {
				t.Errorf("Start = %v, want an error with %q", err, set.want)
			}
		})
	}
}

func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("every other test is one of this already")
	}
	account, err := privateserver.Unprivileged("nobody")
	if err != nil {
		t.Fatal(err)
	}
	h := startHelper(t, account)
	if h.uid != strconv.Itoa(account.UID()) {
		t.Fatalf("the helper runs as %s, want %d", h.uid, account.UID())
	}
	if got := queryText(t, connect(t, h.url), "SELECT 'here'"); got != "here" {
		t.Errorf("answer = %q", got)
	}
	if err := h.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Wait(); err != nil {
		t.Errorf("the helper: %v", err)
	}
	if _, err := os.Stat(h.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat %s: %v, want that it does not exist", h.dir, err)
	}
}

// TestServerEndsWithItsOwner kills the process that started a server.
func TestServerEndsWithItsOwner(t *testing.T) {
	t.Parallel()
	h := startHelper(t, privateserver.Account{})
	conn := connect(t, h.url)
	if err := h.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server ends and its directory goes", func() bool {
		_, err := os.Stat(h.dir)
		return errors.Is(err, os.ErrNotExist)
	})
	if _, err := conn.Exec(t.Context(), "SELECT 1"); err == nil {
		t.Error("the server still answers")
	}
}

// openTempDir returns a temporary directory that other accounts can pass.
func openTempDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
