package pgserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
)

// envHelper makes this test binary a helper process: it starts a server with the programs
// in the named directory, prints the server's address, and stops the server when standard
// input ends.
const envHelper = "NOTIFYD_PGSERVER_HELPER"

func TestMain(m *testing.M) {
	if binDir := os.Getenv(envHelper); binDir != "" {
		if err := helper(context.Background(), binDir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func helper(ctx context.Context, binDir string) error {
	s, err := Start(ctx, Config{BinDir: binDir})
	if err != nil {
		return err
	}
	fmt.Println(s.Dir(), s.URL(""), os.Geteuid())
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return s.Stop(ctx)
}

// requirePrograms returns the directory of the PostgreSQL to test with. In a short run the tests that use servers are
// proof enough.
func requirePrograms(t *testing.T) string {
	t.Helper()
	if testing.Short() && os.Getenv("NOTIFYD_TEST_REQUIRE") != "all" {
		t.Skip("long: make test-all runs it")
	}

	binDir, err := Find(t.Context())
	switch {
	case err == nil:
		return binDir
	case errors.Is(err, privateserver.ErrNotFound) && os.Getenv("NOTIFYD_TEST_REQUIRE") != "all":
		t.Skip(err)
	default:
		t.Fatal(err)
	}
	return ""
}

// startServer starts a server that the end of the test stops.
func startServer(t *testing.T, cfg Config) *Server {
	t.Helper()
	cfg.BinDir = requirePrograms(t)
	s, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(s.Dir()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("stat %s after Stop: %v, want that it does not exist", s.Dir(), err)
		}
	})
	return s
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// queryText returns the single text that a query yields.
func queryText(t *testing.T, conn *pgx.Conn, query string) string {
	t.Helper()
	var text string
	if err := conn.QueryRow(t.Context(), query).Scan(&text); err != nil {
		t.Fatal(err)
	}
	return text
}

func exec1(t *testing.T, conn *pgx.Conn, query string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), query); err != nil {
		t.Fatal(err)
	}
}

// helperProcess is a running helper.
type helperProcess struct {
	cmd      *exec.Cmd
	stdin    io.Closer
	dir, url string
	uid      string
}

// startHelper runs this test binary as a helper under the account.
func startHelper(t *testing.T, account privateserver.Account) *helperProcess {
	t.Helper()
	binDir := requirePrograms(t)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), copyTestBinary(t))
	cmd.Env = []string{envHelper + "=" + binDir, "TMPDIR=/tmp", "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = account.ProcAttr()
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	fields := strings.Fields(line)
	if err != nil || len(fields) != 3 {
		t.Fatalf("the helper said %q, %v", line, err)
	}
	return &helperProcess{cmd: cmd, stdin: stdin, dir: fields[0], url: fields[1], uid: fields[2]}
}

// copyTestBinary copies this test binary to a directory where other accounts can run it.
func copyTestBinary(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "helper")
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	// t.TempDir is inside a directory that is closed to other accounts.
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// eventually polls until ok, for ends that no event announces.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("not within 30 s: %s", what)
		case <-tick.C:
		}
	}
}
