package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/status"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// finishedRows fill the tables with 2,000,000 rows that are finished, or have no route, and with some that wait
// behind them. Indexes that are built afterwards, no triggers and no log make it a matter of seconds.
const finishedRows = `
SET session_replication_role = replica;
SET synchronous_commit = off;
ALTER TABLE outbox_events SET UNLOGGED;
ALTER TABLE outbox_deliveries SET UNLOGGED;
ALTER TABLE outbox_events SET (autovacuum_enabled = off);
ALTER TABLE outbox_deliveries SET (autovacuum_enabled = off);
CREATE TEMP TABLE later AS SELECT indexrelid::regclass::text AS name, pg_get_indexdef(indexrelid) AS definition FROM pg_index
	WHERE indrelid = 'outbox_deliveries'::regclass AND NOT indisprimary;
DO $$ DECLARE r record; BEGIN FOR r IN SELECT name FROM later LOOP EXECUTE 'DROP INDEX ' || r.name; END LOOP; END $$;
INSERT INTO outbox_events (event_type, payload, state, processed_at) SELECT 'old', '1', 'done', now() FROM generate_series(1, 600000);
INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key) SELECT i, '', 'nobody', 'unrouted', NULL FROM generate_series(1, 600000) AS i;
INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key, last_error)
	SELECT i, 'x', 'old', 'dead', 'order/' || CASE WHEN i > 350000 THEN i ELSE 1 END, 'no' FROM generate_series(1, 600000) AS i;
INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key, last_error) SELECT i, 'y', 'old', 'dead', '*', 'no' FROM generate_series(1, 200000) AS i;
INSERT INTO outbox_events (event_type, payload, aggregate_type, aggregate_id, state)
	SELECT CASE WHEN i > 50 THEN 'somebody' ELSE 'late' END, '1', 'order', CASE WHEN i % 2 = 0 THEN 1 ELSE i END, 'deferred' FROM generate_series(1, 60) AS i;
INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key, attempts)
	SELECT 600000 + i, d, 'late', CASE WHEN stream AND i > 20 AND (d = 'y' OR i % 2 = 0) THEN 'parked' ELSE 'retry' END,
		CASE WHEN NOT stream THEN NULL WHEN d = 'y' THEN '*' WHEN i % 2 = 0 THEN 'order/1' ELSE 'order/' || i END, 1
	FROM generate_series(1, 40) AS i, unnest(ARRAY['x', 'y']) AS d, (SELECT mode = 'stream' AS stream FROM outbox_mode) AS m;
INSERT INTO outbox_deliveries (event_id, destination, event_type, state, lease_owner, lease_token, lease_until)
	SELECT 600000 + i, d, 'late', 'running', i % 3, i, now() FROM generate_series(41, 50) AS i, unnest(ARRAY['x', 'y']) AS d, outbox_mode WHERE mode = 'queue';
INSERT INTO outbox_deliveries (event_id, destination, event_type, state) SELECT 600000 + i, d, 'late', 'retry'
	FROM generate_series(41, 50) AS i, unnest(ARRAY['x', 'y']) AS d, outbox_mode WHERE mode = 'stream';
INSERT INTO outbox_deliveries (event_id, destination, event_type, state) SELECT i, '', 'somebody', 'unrouted' FROM generate_series(600051, 600060) AS i;
INSERT INTO outbox_positions (destination, head) SELECT d, 600060 FROM unnest(ARRAY['x', 'y', '']) AS d, outbox_mode WHERE mode = 'stream';
INSERT INTO outbox_routes (destination, since, patterns, head) SELECT d, 1, '{late,new,fails,dies}', 0 FROM unnest(ARRAY['x', 'y']) AS d, outbox_mode WHERE mode = 'stream';
DO $$ DECLARE r record; BEGIN FOR r IN SELECT definition FROM later LOOP EXECUTE r.definition; END LOOP; END $$;
RESET session_replication_role`

// explained has every later session of the database send the plan of each statement that it has run, as a notice.
const explained = `DO $$ DECLARE s text; BEGIN
	FOREACH s IN ARRAY ARRAY['session_preload_libraries = auto_explain', 'auto_explain.log_min_duration = 0', 'auto_explain.log_analyze = on',
		'auto_explain.log_buffers = on', 'auto_explain.log_timing = off', 'auto_explain.log_format = json', 'auto_explain.log_level = notice', 'client_min_messages = notice']
	LOOP EXECUTE format('ALTER DATABASE %I SET %s', current_database(), s); END LOOP; END $$`

// TestFinishedRowsAreNotRead: a table has 2,000,000 dead, done and unrouted rows, analyzed or not. No statement of a
// relay reads more rows than a constant while it takes over, delivers, repeats, dead-letters, routes and replays some
// dozens of events. The counts of "notifyd status" have a separate bound.
func TestFinishedRowsAreNotRead(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e := newEnvIn(t, mode)
			if _, err := e.pool.Exec(t.Context(), `LOAD 'auto_explain'`); err != nil {
				testenv.Need(t, "auto_explain", err)
			}
			e.exec(finishedRows, pgx.QueryExecModeSimpleProtocol)
			e.exec(explained)
			p := &plans{most: float64(notifyd.Config{}.WithDefaults().Retention.Batch) + 100, statements: make(map[string]int)}
			for _, round := range []string{"never analysed", "analysed"} {
				if round == "analysed" {
					e.exec(`ANALYZE outbox_events, outbox_deliveries`)
				}
				if round == "never analysed" {
					e.workBehindFinished(p, 60, 350_001, 350_002, 350_003)
				} else {
					e.workBehindFinished(p, 0, 350_004, 350_005, 350_006)
				}
				p.check(t, round)
				s := &plans{most: 25_000, statements: make(map[string]int)} // it counts up to 10,000 rows of a kind
				e.statusBehindFinished(s)
				s.check(t, round+", status")
			}
		})
	}
}

// TestDeletedEventsAreNotRead: an old snapshot keeps the deleted events of a stream in its indexes. No statement of a relay
// that is at rest reads them, but for the purge, which has its own pauses.
func TestDeletedEventsAreNotRead(t *testing.T) {
	t.Parallel()
	e := newEnvIn(t, outboxsql.ModeStream)
	if _, err := e.pool.Exec(t.Context(), `LOAD 'auto_explain'`); err != nil {
		testenv.Need(t, "auto_explain", err)
	}
	e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', to_json(repeat('x', 800)) FROM generate_series(1, 50000)`)
	e.exec(`INSERT INTO outbox_positions (destination, head) SELECT d, 50000 FROM unnest(ARRAY['all', '']) AS d`)
	old, err := e.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer old.Release()
	testdb.Exec(t, old, `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox_events`, pgx.QueryExecModeSimpleProtocol)
	defer testdb.Exec(t, old, `ROLLBACK`)
	e.exec(`DELETE FROM outbox_events`)
	e.exec(explained)

	p := &plans{most: 1000, statements: make(map[string]int)}
	watched := e.watched(p)
	h := newRecorder(t)
	r := watched.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{Retention: notifyd.Retention{Keep: notifyd.None}, PollInterval: 50 * time.Millisecond})
	for range 20 {
		e.insert("a", "1")
		h.next()
	}
	if err := r.end(); err != nil {
		t.Error(err)
	}
	p.bad = slices.DeleteFunc(p.bad, func(text string) bool { return strings.Contains(text, "DELETE FROM outbox_events") })
	p.check(t, "deleted")
}

// workBehindFinished has relays whose plans are watched do a bit of everything. So many events wait from the start, and the
// dead letters of x of these events are replayed.
func (e *env) workBehindFinished(p *plans, waiting int, dead ...int64) {
	e.t.Helper()
	watched := e.watched(p)
	const write = `INSERT INTO outbox_events (event_type, payload, aggregate_type, aggregate_id)
		SELECT type, '1', 'order', i::text FROM unnest(ARRAY['new', 'new', 'new', 'fails', 'dies']) AS type, generate_series(1, 10) AS i`
	want := waiting + 50
	e.exec(write)
	x, y := newCounted(), newCounted()
	relays := []*running{watched.relay(func(r *notifyd.Relay) { e.bothCounted(r, x, y) }, notifyd.Config{}), watched.relay(func(r *notifyd.Relay) { e.bothCounted(r, x, y) }, notifyd.Config{})}
	e.exec(write)
	want += 50
	x.reach(e.t, "x", want)
	y.reach(e.t, "y", want)

	letters, err := ops.New(e.pool, ops.Config{})
	if err != nil {
		e.t.Fatal(err)
	}
	if r, err := letters.ReplayDeadLetters(e.ctx, ops.DeadLetterFilter{Destination: "x", Events: dead}, ops.BulkAction{Actor: "test"}); err != nil || r.Done != int64(len(dead)) {
		e.t.Errorf("replayed %+v: %v", r, err)
	}
	x.reach(e.t, "x", want+len(dead))
	for _, r := range relays {
		r.Stats()
		if err := r.end(); err != nil {
			e.t.Error(err)
		}
	}
}

// watched returns the same database for relays whose plans are watched.
func (e *env) watched(p *plans) *env {
	e.t.Helper()
	cfg, err := pgxpool.ParseConfig(e.url)
	if err != nil {
		e.t.Fatal(err)
	}
	cfg.ConnConfig.OnNotice = p.notice
	pool, err := pgxpool.NewWithConfig(e.ctx, cfg)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(pool.Close)
	watched := *e
	watched.pool = pool
	return &watched
}

// statusBehindFinished reads what "notifyd status" shows.
func (e *env) statusBehindFinished(p *plans) {
	e.t.Helper()
	cfg, err := pgx.ParseConfig(e.url)
	if err != nil {
		e.t.Fatal(err)
	}
	cfg.OnNotice = p.notice
	conn, err := pgx.ConnectConfig(e.ctx, cfg)
	if err != nil {
		e.t.Fatal(err)
	}
	defer store.Close(e.ctx, conn)
	if _, err := status.Read(e.ctx, conn, status.Options{Schema: outboxsql.DefaultSchema}); err != nil {
		e.t.Error(err)
	}
}

func (e *env) bothCounted(r *notifyd.Relay, x, y *counted) {
	quick := delivery.Lane{Backoff: delivery.Backoff{Initial: time.Millisecond, Max: time.Millisecond, Multiplier: 1}}
	total := quick
	if e.mode == outboxsql.ModeStream {
		total.Order = delivery.OrderTotal
	}
	err := errors.Join(r.Add(notifyd.Destination{Name: "x", Handler: x, Lane: quick}), r.Add(notifyd.Destination{Name: "y", Handler: y, Lane: total}))
	for _, pattern := range []string{"late", "new", "fails", "dies", "somebody", "old"} {
		err = errors.Join(err, r.Route(pattern, "x", "y"))
	}
	if err != nil {
		e.t.Error(err)
	}
}

// counted is a handler that counts events that have ended. Events of the type "fails" end with the second attempt, events
// of the type "dies" with the first.
type counted struct {
	mu    sync.Mutex
	tried map[int64]bool
	ended map[int64]bool
	news  chan struct{}
}

func newCounted() *counted {
	return &counted{tried: make(map[int64]bool), ended: make(map[int64]bool), news: make(chan struct{}, 1)}
}

func (c *counted) Deliver(_ context.Context, e *delivery.Event) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.Type == "fails" && !c.tried[e.ID] {
		c.tried[e.ID] = true
		return errors.New("no")
	}
	c.ended[e.ID] = true
	select {
	case c.news <- struct{}{}:
	default:
	}
	if e.Type == "dies" {
		return delivery.Permanent(errors.New("no"))
	}
	return nil
}

// reach waits until n events have ended.
func (c *counted) reach(t *testing.T, name string, n int) {
	t.Helper()
	late := time.After(patience)
	for {
		c.mu.Lock()
		have := len(c.ended)
		c.mu.Unlock()
		if have >= n {
			return
		}
		select {
		case <-c.news:
		case <-late:
			t.Fatalf("%s has %d events of %d", name, have, n)
		}
	}
}

// plans are the statements that were run, and those that read too much.
type plans struct {
	mu         sync.Mutex
	statements map[string]int
	bad        []string
	most       float64 // rows: a purge reads its batch, and everything else some dozens
}

// mostBuffers is what a statement may touch.
const mostBuffers = 3000

func (p *plans) notice(_ *pgconn.PgConn, n *pgconn.Notice) {
	_, text, ok := strings.Cut(n.Message, "plan:\n")
	if !ok {
		return
	}
	var got struct {
		Text string `json:"Query Text"`
		Plan planNode
	}
	err := json.Unmarshal([]byte(text), &got)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.statements[got.Text]++
	read, buffers := got.Plan.read(), got.Plan.Hit+got.Plan.Read
	if err != nil || read > p.most || buffers > mostBuffers {
		p.bad = append(p.bad, fmt.Sprintf("a statement reads %d rows and %d buffers (%v)\n%s", int(read), int(buffers), err, text))
	}
}

func (p *plans) check(t *testing.T, round string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, bad := range p.bad {
		t.Errorf("%s: %s", round, bad)
	}
	const fewest = 15 // statements: less is a test that sees nothing
	if len(p.statements) < fewest {
		t.Errorf("%s: only %d statements were seen", round, len(p.statements))
	}
	t.Logf("%s: %d statements", round, len(p.statements))
	p.bad = nil
	clear(p.statements)
}

// planNode is a node of a plan that was run.
type planNode struct {
	Relation string  `json:"Relation Name"`
	Rows     float64 `json:"Actual Rows"`
	Loops    float64 `json:"Actual Loops"`
	Filtered float64 `json:"Rows Removed by Filter"`
	Checked  float64 `json:"Rows Removed by Index Recheck"`
	Hit      float64 `json:"Shared Hit Blocks"`
	Read     float64 `json:"Shared Read Blocks"`
	Plans    []planNode
}

// read returns how many rows of tables were read.
func (n *planNode) read() (rows float64) {
	if n.Relation != "" {
		rows = (n.Rows + n.Filtered + n.Checked) * max(n.Loops, 1)
	}
	for i := range n.Plans {
		rows += n.Plans[i].read()
	}
	return rows
}
