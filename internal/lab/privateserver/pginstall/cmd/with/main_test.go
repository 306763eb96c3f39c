//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
)

// The test binary is also with itself, and the command that with runs.
const (
	envWith    = "NOTIFYD_TEST_IS_WITH"
	envCommand = "NOTIFYD_TEST_IS_COMMAND"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(envCommand) != "" && os.Getenv("DATABASE_URL") != "":
		os.Exit(command(context.Background()))
	case os.Getenv(envWith) != "":
		main()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// command is the command that the tests run: it prints its URL and the name of its other
// database, and waits for the end of its input.
func command(ctx context.Context) int {
	url := os.Getenv("DATABASE_URL")
	conn, err := pgx.Connect(ctx, os.Getenv("SHOP_URL"))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	var name string
	err = conn.QueryRow(ctx, "SELECT current_database()").Scan(&name)
	fmt.Println(url, name, strings.Join(os.Args[1:], " "), errors.Join(err, conn.Close(ctx)))
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 7
}

// started is a command that runs with a server.
type started struct {
	*exec.Cmd

	keys io.Closer
	log  *bytes.Buffer
	url  string
}

// need skips the test where PostgreSQL is missing: with would install it.
func need(t *testing.T) {
	t.Helper()
	_, err := pgserver.Find(t.Context())
	if errors.Is(err, privateserver.ErrNotFound) && os.Getenv("NOTIFYD_TEST_REQUIRE") != "all" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// start runs with, and checks the output of the command.
func start(t *testing.T) *started {
	t.Helper()
	need(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &started{Cmd: exec.CommandContext(t.Context(), self, "-also", "SHOP_URL=shop", self, "one", "two words"), log: &bytes.Buffer{}}
	s.Env = append(os.Environ(), envWith+"=1", envCommand+"=1", "DATABASE_URL=", "GORACE=atexit_sleep_ms=0")
	s.Stderr = s.log // Wait waits until stderr is closed, which the process of the server does last
	if s.keys, err = s.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	url, said, _ := strings.Cut(line, " ")
	if s.url = url; err != nil || said != "shop one two words <nil>\n" {
		_ = s.keys.Close()
		t.Fatalf("%q, %v, %v: %s", line, err, s.Wait(), s.log)
	}
	return s
}

// ended checks how the command has ended, and that the server is gone.
func (s *started) ended(t *testing.T, want string) {
	t.Helper()
	if err := s.Wait(); err == nil || err.Error() != want {
		t.Errorf("the command ends with %v, want %s", err, want)
	}
	if text := s.log.String(); !strings.Contains(text, ", private, on port ") || strings.Contains(text, "with: ") {
		t.Errorf("the log is %q", text)
	}
	_, err := pgx.Connect(t.Context(), s.url)
	if refused, ok := errors.AsType[*pgconn.ConnectError](err); !ok || !errors.Is(refused, syscall.ECONNREFUSED) {
		t.Errorf("connecting afterwards: %v", err)
	}
}

// TestWith: the command reaches the server, and the exit code is the command's.
func TestWith(t *testing.T) {
	t.Parallel()
	s := start(t)
	if err := s.keys.Close(); err != nil {
		t.Fatal(err)
	}
	s.ended(t, "exit status 7")
}

// TestSignals: every signal reaches the command, and the server ends.
func TestSignals(t *testing.T) {
	t.Parallel()
	for signal, want := range map[syscall.Signal]string{
		syscall.SIGTERM: "signal: terminated", syscall.SIGINT: "signal: interrupt", syscall.SIGKILL: "signal: killed",
	} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			s := start(t)
			if err := s.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			s.ended(t, want)
		})
	}
}

// TestMistakes: without a command, or with one that does not exist, nothing is started.
func TestMistakes(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"":              "with: a command to run is missing\n",
		"no-such-thing": "with: exec: \"no-such-thing\": executable file not found in $PATH\n",
	} {
		cmd := exec.CommandContext(t.Context(), self, strings.Fields(args)...)
		cmd.Env = append(os.Environ(), envWith+"=1", "GORACE=atexit_sleep_ms=0")
		if out, err := cmd.CombinedOutput(); err == nil || string(out) != want {
			t.Errorf("%q: %v, %q", args, err, out)
		}
	}
}

// TestServeEndsEarly: the end of the input ends the start of the server.
func TestServeEndsEarly(t *testing.T) {
	t.Parallel()
	need(t)
	var out, log bytes.Buffer
	if err := serve(t.Context(), "", strings.NewReader(""), &out, &log); err == nil || out.Len() > 0 {
		t.Errorf("%v, %q, %q", err, out.String(), log.String())
	}
}
