package listener

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// database creates a database with the tables and the bell, and returns its URL and a
// connection.
func database(tb testing.TB) (string, *pgx.Conn) {
	tb.Helper()
	url := testenv.Database(tb)
	conn := connect(tb, url)
	if _, err := outboxsql.Migrate(tb.Context(), conn, "public", outboxsql.BellAuto); err != nil {
		tb.Fatal(err)
	}
	return url, conn
}

func connect(tb testing.TB, url string) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close(context.WithoutCancel(tb.Context())) })
	return conn
}

func exec(tb testing.TB, conn *pgx.Conn, query string, args ...any) {
	tb.Helper()
	if _, err := conn.Exec(tb.Context(), query, args...); err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
}

func value[T any](tb testing.TB, conn *pgx.Conn, query string, args ...any) T {
	tb.Helper()
	var v T
	if err := conn.QueryRow(tb.Context(), query, args...).Scan(&v); err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
	return v
}

// dialer opens connections and records the server process of the last one.
type dialer struct {
	url string

	mu   sync.Mutex
	pids []int64
}

func (d *dialer) connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, d.url)
	if err == nil {
		d.mu.Lock()
		d.pids = append(d.pids, int64(conn.PgConn().PID()))
		d.mu.Unlock()
	}
	return conn, err
}

// terminate ends the newest session and returns once its server process is gone.
func (d *dialer) terminate(tb testing.TB, admin *pgx.Conn) {
	tb.Helper()
	d.mu.Lock()
	pid := d.pids[len(d.pids)-1]
	d.mu.Unlock()
	if !value[bool](tb, admin, `SELECT pg_terminate_backend($1, 60000)`, pid) {
		tb.Fatal("the session did not end")
	}
}

// logbook collects messages: "WARN text".
type logbook struct {
	slog.Handler

	mu    sync.Mutex
	lines []string
}

func (l *logbook) Enabled(context.Context, slog.Level) bool { return true }

func (l *logbook) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprint(r.Level, " ", r.Message))
	return nil
}

// expect compares the messages above debug, by their beginnings.
func (l *logbook) expect(tb testing.TB, want ...string) {
	tb.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	got := slices.DeleteFunc(slices.Clone(l.lines), func(s string) bool { return strings.HasPrefix(s, "DEBUG") })
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		tb.Errorf("logged %q, want %q", got, want)
	}
}

// start runs f until the test ends and checks that it returns the cause.
func start(tb testing.TB, run func(context.Context) error) (stop func()) {
	tb.Helper()
	ctx, cancel := context.WithCancelCause(tb.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cause := fmt.Errorf("end of %s", tb.Name())
		cancel(cause)
		if err := <-done; err != cause && tb.Context().Err() == nil { //nolint:errorlint // this very error is wanted
			tb.Errorf("Run returned %v", err)
		}
	})
	tb.Cleanup(stop)
	return stop
}
