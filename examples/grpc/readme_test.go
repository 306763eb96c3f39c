//go:build unix

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// envSelf makes this test binary the program itself.
const envSelf = "GRPC_TEST_IS_RELAY"

// patience bounds each wait of the test on a busy machine.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(envSelf) != "" {
		main()
		return
	}
	code := m.Run()
	if code == 0 {
		if err := findLeaks(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// findLeaks looks for leaked goroutines, for longer than goleak's half second.
func findLeaks() (err error) {
	for end := time.Now().Add(patience); ; {
		if err = goleak.Find(); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// database starts a PostgreSQL with the tables.
func database(t *testing.T) *pgx.Conn {
	t.Helper()
	bin, err := pgserver.Find(t.Context())
	if err != nil {
		if os.Getenv("NOTIFYD_TEST_REQUIRE") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	server, err := pgserver.Start(t.Context(), pgserver.Config{BinDir: bin})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	conn, err := pgx.Connect(t.Context(), server.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	if _, err := outboxsql.Migrate(t.Context(), conn, outboxsql.DefaultSchema, outboxsql.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestReadme runs the program by the command of README.md, and checks that an event
// arrives at the service.
func TestReadme(t *testing.T) {
	t.Parallel()
	conn := database(t)
	s := &service{}
	s.start(t)
	t.Cleanup(func() { s.stop(t) })
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?ms)^```\n(go run .*?)^go test ./...\n```$").FindStringSubmatch(string(page))
	if block == nil {
		t.Fatal("README.md has no block that runs the program, and its tests")
	}
	line := strings.NewReplacer("go run .", envSelf+"=1 exec '"+self+"'", "postgres://localhost/shop", "'"+conn.Config().ConnString()+"'",
		"127.0.0.1:50051", s.address).Replace(block[1])
	var says bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "bash", "-c", line)
	cmd.Stdout, cmd.Stderr = &says, &says
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `INSERT INTO outbox_events (event_type, payload) VALUES ('order.placed', '{"order": 7}')`); err != nil {
		t.Fatal(err)
	}
	for deadline, done := time.Now().Add(patience), false; !done && time.Now().Before(deadline); {
		if err := conn.QueryRow(t.Context(), `SELECT state = 'done' FROM outbox_events, pg_sleep(0.02)`).Scan(&done); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%s: %v\n%s", line, err, &says)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.ids, []int64{1}) {
		t.Errorf("the service got %v\n%s", s.ids, &says)
	}
}
