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

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// database creates a database with the tables and the trigger, and returns its URL and a
// connection.
func database(tb testing.TB) (string, *pgx.Conn) {
	tb.Helper()
	d := testdb.New(tb, testdb.Tables{})
	return d.URL, d.Conn
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
	if !testdb.One[bool](tb, admin, `SELECT pg_terminate_backend($1, 60000)`, pid) {
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

// newListener returns a listener for one subscriber.
func newListener(connect Connect, channel string, hints Hints, log *slog.Logger, onListen func()) *Listener {
	return New(connect, log, &Subscriber{Channel: channel, Hints: hints, OnListen: onListen})
}
