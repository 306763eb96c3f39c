// Package integration proves the promises of notifyd from end to end, on real
// servers that the tests start, kill and restart themselves.
package integration

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// never is a poll interval that no test outlives: events that are delivered with
// it were not found by polling.
const never = time.Hour

// patience bounds each wait for an expected change; no test expects it to run out.
const patience = 4 * time.Minute

// env is a database with the schema, on which a test operates.
type env struct {
	t    *testing.T
	ctx  context.Context //nolint:containedctx // the test's own
	url  string
	pool *pgxpool.Pool
	mode outboxsql.Mode
}

// bothModes are the modes of a table, for tests of promises that a queue and a
// stream share.
func bothModes() []outboxsql.Mode { return []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} }

// newEnvIn is newEnv with the table of a mode.
func newEnvIn(t *testing.T, mode outboxsql.Mode) *env {
	t.Helper()
	return newEnv(t).become(mode)
}

// become changes the mode of the table. No relay may be at work.
func (e *env) become(mode outboxsql.Mode) *env {
	e.t.Helper()
	return e.becomeIn(outboxsql.DefaultSchema, mode)
}

func (e *env) becomeIn(schema string, mode outboxsql.Mode) *env {
	e.t.Helper()
	conn, err := e.pool.Acquire(e.ctx)
	if err != nil {
		e.t.Fatal(err)
	}
	defer conn.Release()
	if err := outboxsql.SetMode(e.ctx, conn.Conn(), schema, mode, outboxsql.ModeOptions{}); err != nil {
		e.t.Fatal(err)
	}
	e.mode = mode
	return e
}

// newEnv creates a database on the shared server and migrates it.
func newEnv(t *testing.T) *env {
	t.Helper()
	return envOf(t, testdb.URL(t, testdb.Tables{}))
}

// envPartitions names the environment variable that makes all tests of this
// package use partitioned tables.
const envPartitions = "NOTIFYD_TEST_PARTITIONS"

// envAt is newEnv in an empty database of the test's own.
func envAt(t *testing.T, url string) *env {
	t.Helper()
	testdb.At(t, url, testdb.Tables{})
	return envOf(t, url)
}

func envOf(t *testing.T, url string) *env {
	t.Helper()
	pool := testdb.Pool(t, url)
	e := &env{t: t, ctx: t.Context(), url: url, pool: pool, mode: outboxsql.ModeQueue}
	if os.Getenv(envPartitions) != "" {
		e.partition(time.Time{})
		// ON CONFLICT DO NOTHING alone ignores nothing there.
		e.exec(`ALTER DATABASE ` + pgx.Identifier{pool.Config().ConnConfig.Database}.Sanitize() + ` SET notifyd.duplicate = 'ignore'`)
		pool.Reset()
	}
	return e
}

func (e *env) migrate(schema string, notify outboxsql.NotifyMode) {
	e.t.Helper()
	conn, err := e.pool.Acquire(e.ctx)
	if err != nil {
		e.t.Fatal(err)
	}
	defer conn.Release()
	if _, err := outboxsql.Migrate(e.ctx, conn.Conn(), schema, outboxsql.MigrateOptions{Notify: notify}); err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) exec(sql string, args ...any) {
	e.t.Helper()
	testdb.Exec(e.t, e.pool, sql, args...)
}

// insert writes one event in a separate transaction and returns its id.
func (e *env) insert(eventType, payload string) (id int64) {
	e.t.Helper()
	return scan[int64](e, `INSERT INTO outbox_events (event_type, payload) VALUES ($1, $2) RETURNING id`, eventType, payload)
}

// scan returns the one value of a query.
func scan[T any](e *env, sql string, args ...any) (value T) {
	e.t.Helper()
	if err := e.pool.QueryRow(e.ctx, sql, args...).Scan(&value); err != nil {
		e.t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// until waits for a query to return true. The database does not signal changes by
// other sessions, so until polls.
func (e *env) until(what, sql string, args ...any) {
	e.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		var ok bool
		err := e.pool.QueryRow(e.ctx, sql, args...).Scan(&ok)
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			e.t.Fatalf("%s did not happen within %v (%v); the tables:\n%s", what, patience, err, e.dump())
		}
	}
}

// untilState waits for an event to reach a state. In a stream events have none:
// an event is done when it is ahead of no destination, and deferred while a
// delivery of it is stored.
func (e *env) untilState(id int64, state string) {
	e.t.Helper()
	what := fmt.Sprintf("event %d %s", id, state)
	switch {
	case e.mode != outboxsql.ModeStream:
		e.until(what, `SELECT state = $2 FROM outbox_events WHERE id = $1`, id, state)
	case state == "deferred":
		e.until(what, `SELECT EXISTS (SELECT FROM outbox_deliveries WHERE event_id = $1)`, id)
	default:
		e.until(what, doneWhere(e.mode, everyPlace, `e.id = $1`), id)
	}
}

// untilDone waits until nothing is left to do.
func (e *env) untilDone() {
	e.t.Helper()
	e.until("everything done", doneWhere(e.mode, everyPlace, `true`))
}

// everyPlace selects all destinations that ever existed.
const everyPlace = `destination <> ''`

// doneWhere returns a query that reports whether all events e that match a
// condition are done. In a stream that depends on the destinations that match
// places.
func doneWhere(mode outboxsql.Mode, places, condition string) string {
	if mode != outboxsql.ModeStream {
		return `SELECT NOT EXISTS (SELECT FROM outbox_events AS e WHERE e.state <> 'done' AND (` + condition + `))`
	}
	return `WITH p AS (SELECT * FROM outbox_positions WHERE ` + places + `)
		SELECT EXISTS (SELECT FROM p)
		AND NOT EXISTS (SELECT FROM outbox_events AS e, p WHERE e.id > p.head AND (` + condition + `))
		AND NOT EXISTS (SELECT FROM p, unnest(p.open) AS r, outbox_events AS e WHERE e.id >= lower(r) AND e.id < upper(r) AND (` + condition + `))
		AND NOT EXISTS (SELECT FROM outbox_deliveries AS d JOIN p ON p.destination = d.destination OR d.destination = '' JOIN outbox_events AS e ON e.id = d.event_id
			WHERE d.state <> 'dead' AND (` + condition + `))`
}

// untilAll waits until all events e that match a condition are done at their one
// destination.
func (e *env) untilAll(what, destination, condition string, args ...any) {
	e.t.Helper()
	e.until(what, doneWhere(e.mode, `destination = '`+destination+`'`, condition), args...)
}

// untouched returns the number of events of a type that wait as if they had never
// been tried: in a stream, those without a row that are ahead of the destination
// of that name.
func (e *env) untouched(eventType, destination string) int {
	e.t.Helper()
	if e.mode != outboxsql.ModeStream {
		return scan[int](e, `SELECT count(*) FROM outbox_events WHERE event_type = $1 AND state = 'fresh'`, eventType)
	}
	return scan[int](e, `SELECT count(*) FROM outbox_events AS e, outbox_positions AS p WHERE e.event_type = $1 AND p.destination = $2
		AND (e.id > p.head OR e.id <@ p.open) AND NOT EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.event_id = e.id)`, eventType, destination)
}

// dump shows the rows that are not done.
func (e *env) dump() string {
	var b bytes.Buffer
	for _, sql := range []string{
		`SELECT e::text FROM (SELECT id, state, event_type FROM outbox_events WHERE state <> 'done' ORDER BY id LIMIT 10) e`,
		`SELECT d::text FROM (SELECT * FROM outbox_deliveries ORDER BY event_id LIMIT 10) d`,
		`SELECT left(p::text, 500) FROM outbox_positions p`,
		`SELECT state || ' ' || count(*) FROM outbox_events GROUP BY state`,
		`SELECT application_name || ' ' || coalesce(state, '') || ' ' || left(query, 60) FROM pg_stat_activity WHERE datname = current_database()`,
	} {
		rows, err := e.pool.Query(context.WithoutCancel(e.ctx), sql)
		if err != nil {
			fmt.Fprintln(&b, err)
			continue
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		fmt.Fprintln(&b, lines, err)
	}
	return b.String()
}

// running is a running relay.
type running struct {
	*notifyd.Relay
	t    *testing.T
	stop context.CancelFunc
	done chan error
	log  *logBuffer
}

// relay starts a relay and waits until it is ready; register is called with the
// relay first, to add handlers. The end of the test stops it.
func (e *env) relay(register func(r *notifyd.Relay), cfg notifyd.Config) *running {
	e.t.Helper()
	r := e.start(register, cfg)
	r.waitReady()
	return r
}

// start is relay without waiting.
func (e *env) start(register func(r *notifyd.Relay), cfg notifyd.Config) *running {
	e.t.Helper()
	log := &logBuffer{}
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if cfg.Logger == nil {
		cfg.Logger = logger
	}
	relay, err := notifyd.New(e.pool, cfg)
	if err != nil {
		e.t.Fatal(err)
	}
	register(relay)
	ctx, cancel := context.WithCancel(context.WithoutCancel(e.ctx))
	r := &running{Relay: relay, t: e.t, stop: cancel, done: make(chan error, 1), log: log}
	go func() { r.done <- relay.Run(ctx) }()
	e.t.Cleanup(func() {
		if err := r.end(); err != nil {
			e.t.Errorf("relay ended with: %v", err)
		}
		if e.t.Failed() {
			e.t.Logf("log of the relay:\n%s", log.text())
		}
	})
	return r
}

func (r *running) waitReady() {
	r.t.Helper()
	select {
	case <-r.Ready():
	case err := <-r.done:
		r.done <- err
		r.t.Fatalf("relay ended before it was ready: %v", err)
	case <-time.After(patience):
		r.t.Fatalf("relay is not ready; its log:\n%s", r.log.text())
	}
}

// end stops the relay and returns what Run returned; it may be called again.
func (r *running) end() error {
	r.stop()
	return r.wait()
}

// wait waits for the end of the relay, and returns what Run returned.
func (r *running) wait() error {
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(patience):
		return fmt.Errorf("relay does not stop; its log:\n%s", r.log.text())
	}
}

// lostClaim reports whether the relay has given up a claim, as it does when the
// machine stalls it for some seconds: then its events come again. In a stream it
// reports that the leases cannot be renewed.
func (r *running) lostClaim() bool { return r.log.lostClaim() }

// logBuffer collects a log from several goroutines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBuffer) lostClaim() bool {
	return strings.Contains(l.text(), "claim lost") || strings.Contains(l.text(), "no connection to renew the leases")
}

// recorder is a handler that records its calls.
type recorder struct {
	t      *testing.T
	answer func(ctx context.Context, e *delivery.Event) error // nil: delivered
	calls  chan *delivery.Event

	mu    sync.Mutex
	count map[int64]int // calls by event
}

func newRecorder(t *testing.T) *recorder {
	t.Helper()
	return &recorder{t: t, calls: make(chan *delivery.Event, 1<<18), count: make(map[int64]int)}
}

// Deliver implements delivery.Handler.
func (r *recorder) Deliver(ctx context.Context, e *delivery.Event) error {
	r.mu.Lock()
	r.count[e.ID]++
	r.mu.Unlock()
	r.calls <- e
	if r.answer == nil {
		return nil
	}
	return r.answer(ctx, e)
}

// next returns the next call.
func (r *recorder) next() *delivery.Event {
	r.t.Helper()
	select {
	case e := <-r.calls:
		return e
	case <-time.After(patience):
		r.t.Fatal("handler was not called")
		return nil
	}
}

// times returns how often the event was delivered.
func (r *recorder) times(id int64) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count[id]
}

// all checks that each of the n events of the table was delivered, and returns
// the number of further copies.
func (r *recorder) all(e *env, n int) (copies int) {
	r.t.Helper()
	rows, err := e.pool.Query(e.ctx, `SELECT id FROM outbox_events`)
	if err != nil {
		r.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		r.t.Fatal(err)
	}
	if len(ids) != n {
		r.t.Errorf("%d events are in the table, want %d", len(ids), n)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	missed := 0
	for _, id := range ids {
		if r.count[id] == 0 {
			missed++
		}
		copies += max(0, r.count[id]-1)
	}
	if missed > 0 {
		r.t.Errorf("%d of %d events were never delivered", missed, n)
	}
	return copies
}

// each checks that n events were delivered, and none of them again unless a
// relay has lost a claim.
func (r *recorder) each(n int, relays ...*running) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := 0
	for _, times := range r.count {
		calls += times
	}
	if len(r.count) != n {
		r.t.Errorf("%d of %d events were delivered", len(r.count), n)
	}
	if calls > n && !slices.ContainsFunc(relays, (*running).lostClaim) {
		r.t.Errorf("%d calls for %d events", calls, n)
	}
}

// handleAll registers h for everything.
func handleAll(t *testing.T, h delivery.Handler, lane delivery.Lane) func(*notifyd.Relay) {
	t.Helper()
	return func(r *notifyd.Relay) {
		if err := r.Handle("*", notifyd.Destination{Name: "all", Handler: h, Lane: lane}); err != nil {
			t.Fatal(err)
		}
	}
}

// quick is a backoff that costs a test no time.
func quick() delivery.Backoff {
	return delivery.Backoff{Initial: time.Millisecond, Max: 10 * time.Millisecond, Multiplier: 2}
}
