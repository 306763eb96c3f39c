package interplay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// patience is how long nothing may move before a plan counts as stuck. No test expects it to run out.
	patience = 90 * time.Second
	// look is the time between two looks at the tables, which signal nothing.
	look = 10 * time.Millisecond
	// longAgo and expiresAfter make the age of an event certain.
	longAgo, expiresAfter = 48 * time.Hour, 24 * time.Hour
	// largePayload is how many bytes a large event has: more than a row that a relay expects.
	largePayload = 1 << 20
	// ahead is how far a clock that is set is ahead of the machine's at the beginning. Steps back are shorter: see
	// testenv.ClockPostgres.
	ahead = 6 * time.Hour
)

// world is a database with relays, on which a script acts.
type world struct {
	t        *testing.T
	ctx      context.Context //nolint:containedctx // the test's own
	plan     *plan
	url      string
	pool     *pgxpool.Pool
	sink     *sink
	model    *model
	operator *ops.Client // for people's requests
	relays   []*member
	late     []*openTx
	mode     outboxsql.Mode
	routes   routes
	settings []destination // of those that are configured
	paused   map[string]bool
	log      *logBuffer // of all relays
	setClock func(offset time.Duration)
	// serverLog is the log of that server; "" without a server of its own.
	serverLog string
	offset    time.Duration // of the server's clock, compared with the beginning; never ahead of it
}

// member is a relay that runs.
type member struct {
	proxy    *testenv.Proxy
	isolated bool
	stop     context.CancelFunc
	done     chan error
}

// openTx is a transaction that commits later.
type openTx struct {
	conn    *pgx.Conn
	tx      pgx.Tx
	entries []*entry
}

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

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// play plays a plan in a new database, and returns the faults that it found.
func play(t *testing.T, p *plan) error {
	t.Helper()
	w := &world{
		t: t, ctx: t.Context(), plan: p, sink: newSink(p), relays: make([]*member, p.relays),
		mode: p.mode, routes: p.routes, paused: make(map[string]bool), log: &logBuffer{},
	}
	w.createTables(testdb.Tables{Mode: p.mode, Partitioned: p.partitioned})
	w.settings = slices.DeleteFunc(slices.Clone(p.destinations), func(d destination) bool { return d.late })
	w.pool = testdb.Pool(t, w.url)
	w.model = newModel(p, w.settings)
	var err error
	if w.operator, err = ops.New(w.pool, ops.Config{DeleteEvents: p.deletes}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.killAll)
	err = w.run()
	if crash := w.crash(); err != nil && crash != "" {
		err = fmt.Errorf("libfaketime has ended a process of PostgreSQL: %s: %w", crash, err)
	}
	if err != nil {
		err = fmt.Errorf("%w\ntables:\n%s\nlog:\n%s", err, w.dump(), w.log)
	}
	return err
}

// createTables creates a database with the tables. A plan that sets the clock has a server of its own.
func (w *world) createTables(tables testdb.Tables) {
	w.t.Helper()
	if !slices.ContainsFunc(w.plan.steps, func(s step) bool { return s.action == setClock }) {
		w.url = testdb.URL(w.t, tables)
		return
	}
	server, set := testenv.ClockPostgres(w.t, nil)
	set(ahead)
	w.url, w.setClock, w.serverLog = server.URL(""), set, server.LogFile()
	testdb.At(w.t, w.url, tables)
}

// crash returns the line of the server's log about a process that crashed; empty without one. With libfaketime, PostgreSQL
// allocates memory in signal handlers, which sometimes crashes it, as no signal of a test does.
func (w *world) crash() string {
	if w.serverLog == "" {
		return ""
	}
	return regexp.MustCompile(`(?m)^.* was terminated by signal (?:6|11)\b.*$`).FindString(testenv.ReadFile(w.t, w.serverLog))
}

// run runs the script, and checks the result.
func (w *world) run() error {
	if slices.ContainsFunc(w.plan.steps, func(s step) bool { return s.action == ignore }) {
		if _, err := w.pool.Exec(w.ctx, ignoring); err != nil {
			return err
		}
	}
	if w.plan.references {
		if _, err := w.pool.Exec(w.ctx, `CREATE TABLE orders (event bigint NOT NULL REFERENCES outbox_events)`); err != nil {
			return err
		}
	}
	if err := w.startAll(); err != nil {
		return err
	}
	// A relay that is killed at once may leave no position: then the next reload would make the first ones.
	if err := w.await(w.unnoted, func() {}); err != nil {
		return err
	}
	for i, s := range w.plan.steps {
		if err := w.do(s); err != nil {
			return fmt.Errorf("step %d, %s: %w", i, s.action, err)
		}
	}
	if err := w.rest(); err != nil {
		return err
	}
	if err := w.stopAll(); err != nil {
		return err
	}
	return w.verdict()
}

// do does one step.
func (w *world) do(s step) error {
	switch s.action {
	case write:
		for _, tx := range s.txs {
			if err := w.write(tx); err != nil {
				return err
			}
		}
	case wait:
		<-time.After(s.pause)
	case rest:
		return w.rest()
	case outage:
		w.sink.setDown(s.destination, true)
	case endOutage:
		w.sink.setDown(s.destination, false)
	case pause:
		w.paused[s.destination] = true
		return w.operator.Pause(w.ctx, s.destination, ops.Action{Actor: "test"})
	case resume:
		delete(w.paused, s.destination)
		_, err := w.operator.Resume(w.ctx, s.destination, ops.Action{Actor: "test"})
		return err
	case restart:
		return errors.Join(w.stop(s.relay), w.start(s.relay))
	case kill:
		w.model.faulty(w.sink.clock())
		w.kill(s.relay)
		if !s.gone {
			return w.start(s.relay)
		}
	case cut, isolate:
		if m := w.relays[s.relay]; m != nil {
			w.model.faulty(w.sink.clock())
			m.proxy.Cut()
			if m.isolated = m.isolated || s.action == isolate; !m.isolated {
				m.proxy.Restore()
			}
		}
	case reload:
		return w.reload(s)
	case replay:
		return w.replay(s)
	case stopReplay:
		return w.stopReplay(s.destination)
	case seek:
		return w.seek(s)
	case discard:
		return w.discard(s.destination)
	case redeliver:
		return w.redeliver(s.destination, s.heal)
	case convert:
		return w.convert()
	case ignore:
		return w.ignore(s)
	case setClock:
		return w.stepClock(s.offset)
	}
	return nil
}

// stepClock sets the clock of the server. A lease of a queue may end early by a step forward, so that another relay
// delivers its event again.
func (w *world) stepClock(offset time.Duration) error {
	if offset > w.offset && w.mode == outboxsql.ModeQueue {
		w.model.faulty(w.sink.clock())
	}
	w.model.setBack = w.model.setBack || offset < w.offset
	w.setClock(ahead + offset)
	w.offset = offset
	var now time.Time
	err := w.pool.QueryRow(w.ctx, `SELECT clock_timestamp()`).Scan(&now)
	if err == nil && time.Since(now.Add(-ahead-offset)).Abs() > time.Hour/2 {
		err = fmt.Errorf("the clock of the server is %v, not %v from its beginning", now, offset)
	}
	return err
}

// ignoring are triggers of a user that ignore all writes to the tables in ignored_tables, but those of a writer.
const ignoring = `
	CREATE TABLE ignored_tables (name text);
	CREATE FUNCTION ignore_write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF EXISTS (SELECT FROM ignored_tables WHERE name = TG_ARGV[0]) THEN RETURN NULL; END IF;
		RETURN coalesce(NEW, OLD);
	END $$;
	CREATE TRIGGER ignore_write BEFORE UPDATE OR DELETE ON outbox_events FOR EACH ROW EXECUTE FUNCTION ignore_write('outbox_events');
	CREATE TRIGGER ignore_write BEFORE INSERT OR UPDATE OR DELETE ON outbox_deliveries FOR EACH ROW EXECUTE FUNCTION ignore_write('outbox_deliveries');
	CREATE TRIGGER ignore_write BEFORE UPDATE ON outbox_positions FOR EACH ROW WHEN (OLD.head <> NEW.head)
		EXECUTE FUNCTION ignore_write('outbox_positions')`

// ignore has a trigger ignore the writes of relays for a time. What a relay delivered meanwhile may come again from
// another one.
func (w *world) ignore(s step) error {
	w.model.faulty(w.sink.clock())
	if _, err := w.pool.Exec(w.ctx, `INSERT INTO ignored_tables VALUES ($1)`, s.table); err != nil {
		return err
	}
	<-time.After(s.pause)
	_, err := w.pool.Exec(w.ctx, `DELETE FROM ignored_tables`)
	return err
}

// register adds the destinations and routes to a relay.
func (w *world) register(r *notifyd.Relay) error {
	stream := w.mode == outboxsql.ModeStream
	for i := range w.settings {
		d := &w.settings[i]
		one := notifyd.Destination{Name: d.name, Handler: w.sink.handler(d, stream), Lane: w.lane(d, stream), Filter: w.filter(d)}
		if d.keyed {
			one.RateKey = func(c *delivery.Candidate) (string, error) { return c.AggregateID, nil }
		}
		if err := r.Add(one); err != nil {
			return err
		}
	}
	for pattern, to := range w.routes {
		if err := r.Route(pattern, to...); err != nil {
			return err
		}
	}
	return nil
}

// lane returns the lane of a destination. Some settings need a stream.
func (w *world) lane(d *destination, stream bool) delivery.Lane {
	l := delivery.Lane{
		Concurrency: d.concurrency, Batch: max(1, d.batch), MaxAttempts: d.attempts, LongestPause: 20 * time.Millisecond, Timeout: 20 * time.Second,
		Backoff: delivery.Backoff{Initial: time.Millisecond, Max: 10 * time.Millisecond, Multiplier: 2},
	}
	switch {
	case d.order == none:
		l.Order = delivery.OrderNone
	case d.order == total && stream:
		l.Order = delivery.OrderTotal
	}
	if stream && d.order != total {
		l.Shards = max(1, d.shards)
	}
	if d.block && stream {
		l.OnDead.Then = delivery.OnDeadBlock
	}
	if d.beginning && stream {
		l.StartFrom = "beginning"
	}
	if d.expiry {
		l.ExpiresAfter = expiresAfter
	}
	if d.rate > 0 {
		l.RateLimit, l.RateBurst = delivery.Rate{Events: d.rate, Per: time.Second}, 5
	}
	return l
}

// filter returns the filter of a destination, nil for none.
func (w *world) filter(d *destination) delivery.Filter {
	if !d.filter {
		return nil
	}
	return func(e *delivery.Candidate) (bool, error) {
		n := number(e.Event)
		if d.refuses(n) && !w.sink.isHealed(d.name, e.ID) {
			return false, errors.New("the filter fails")
		}
		return !d.drops(n), nil
	}
}

func (s *sink) isHealed(destination string, id int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.healed[key{destination, id}]
}

// start starts a relay.
func (w *world) start(i int) error {
	proxy, url := testenv.NewProxy(w.t, w.url)
	pool, err := pgxpool.New(w.ctx, url)
	if err != nil {
		return err
	}
	cfg := notifyd.Config{Logger: slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelWarn})).With("relay", i), PollInterval: 30 * time.Millisecond, Connections: w.plan.claims, Batch: w.plan.batch, LockBudget: w.plan.budget, Lease: time.Second}
	if w.setClock != nil || w.plan.deletes {
		// No relay freezes. A server of its own makes the machine slow, and a queue writes each answer of a referenced event
		// that it cannot delete in a transaction of its own: a busy machine has taken 21 s for some dozens.
		cfg.Lease = 40 * time.Second
	}
	if w.plan.deletes {
		cfg.Retention.Keep = notifyd.None
	}
	if w.plan.pollOnly {
		cfg.PollingOnly = true
	}
	if w.plan.hurry {
		cfg.ShutdownTimeout = notifyd.None
	}
	r, err := notifyd.New(pool, cfg)
	if err == nil {
		err = w.register(r)
	}
	if err != nil {
		pool.Close()
		return err
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(w.ctx))
	m := &member{proxy: proxy, stop: stop, done: make(chan error, 1)}
	w.relays[i] = m
	go func() {
		err := r.Run(ctx)
		pool.Close()
		m.done <- err
	}()
	return nil
}

// startAll starts the relays that do not run.
func (w *world) startAll() (err error) {
	for i, m := range w.relays {
		if m == nil {
			err = errors.Join(err, w.start(i))
		}
	}
	return err
}

// stop stops a relay in order, unless it has no connection.
func (w *world) stop(i int) error {
	m := w.relays[i]
	if m == nil || m.isolated {
		w.kill(i)
		return nil
	}
	w.relays[i] = nil
	m.stop()
	if err := <-m.done; err != nil {
		return fmt.Errorf("relay %d: %w", i, err)
	}
	return nil
}

func (w *world) stopAll() (err error) {
	for i := range w.relays {
		err = errors.Join(err, w.stop(i))
	}
	return err
}

// kill ends a relay that can no longer write.
func (w *world) kill(i int) {
	m := w.relays[i]
	if m == nil {
		return
	}
	w.relays[i] = nil
	m.proxy.Cut()
	m.stop()
	if err := <-m.done; err != nil {
		_, _ = fmt.Fprintln(w.log, err) // of any kind
	}
}

func (w *world) killAll() {
	for i := range w.relays {
		w.kill(i)
	}
}

// write writes a transaction.
func (w *world) write(tx transaction) error {
	conn, err := pgx.Connect(w.ctx, w.url)
	if err != nil {
		return err
	}
	o := &openTx{conn: conn}
	if o.tx, err = conn.Begin(w.ctx); err != nil {
		return err
	}
	if tx.savepoint {
		inner, err := o.tx.Begin(w.ctx)
		if err != nil {
			return err
		}
		if _, err := insert(w.ctx, inner, tx.events[0]); err != nil {
			return err
		}
		if err := inner.Rollback(w.ctx); err != nil {
			return err
		}
	}
	for _, e := range tx.events {
		id, err := insert(w.ctx, o.tx, e)
		if err != nil {
			return err
		}
		o.entries = append(o.entries, &entry{event: e, id: id})
		if err := w.refer(o.tx, e, id); err != nil {
			return err
		}
	}
	switch tx.ending {
	case rollsBack:
		return errors.Join(o.tx.Rollback(w.ctx), conn.Close(w.ctx))
	case commitsLate:
		w.late = append(w.late, o)
		w.t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(w.ctx)) })
		return nil
	case commits:
	}
	return w.commit(o)
}

// refer inserts foreign keys to some events: to one that the transaction writes, and to an earlier one, unless a relay deletes
// it meanwhile. The transaction locks both until it ends.
func (w *world) refer(tx pgx.Tx, e event, id int64) error {
	if !w.plan.references || e.n%3 > 0 {
		return nil
	}
	_, err := tx.Exec(w.ctx, `WITH earlier AS (SELECT id FROM outbox_events WHERE id > $1::bigint - 10 AND id < $1 ORDER BY id LIMIT 1 FOR KEY SHARE)
		INSERT INTO orders SELECT $1::bigint UNION ALL SELECT id FROM earlier`, id)
	return err
}

// commit commits a transaction. The model knows of its events before any relay does.
func (w *world) commit(o *openTx) error {
	w.model.wrote(w.sink.clock(), o.entries)
	return errors.Join(o.tx.Commit(w.ctx), o.conn.Close(w.ctx))
}

// commitLate commits the transactions that commit late.
func (w *world) commitLate() error {
	for _, o := range w.late {
		if err := w.commit(o); err != nil {
			return err
		}
	}
	w.late = nil
	return nil
}

// insert writes an event.
func insert(ctx context.Context, tx pgx.Tx, e event) (id int64, err error) {
	var delay, age *time.Duration
	if e.delay > 0 {
		delay = &e.delay
	}
	if e.old {
		some := longAgo
		age = &some
	}
	aggregate := ""
	if e.aggregate > 0 {
		aggregate = strconv.Itoa(e.aggregate)
	}
	more := 0
	if e.large {
		more = largePayload
	}
	err = tx.QueryRow(ctx, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, available_at, created_at)
		VALUES ($1, nullif($2, ''), nullif($2, ''), json_build_object('N', $3::int, 'more', repeat('x', $6)), clock_timestamp() + $4::interval, now() - coalesce($5::interval, '0')) RETURNING id`,
		e.eventType, aggregate, e.n, delay, age, more).Scan(&id)
	return id, err
}

// settle ends all disturbances: transactions end, destinations are healthy, nothing is paused, and all relays run.
func (w *world) settle() error {
	for _, m := range w.relays {
		if m != nil && m.isolated {
			m.proxy.Restore()
			m.isolated = false
		}
	}
	if err := w.startAll(); err != nil {
		return err
	}
	if err := w.commitLate(); err != nil {
		return err
	}
	w.sink.calm()
	for name := range w.paused {
		if _, err := w.operator.Resume(w.ctx, name, ops.Action{Actor: "test"}); err != nil {
			return err
		}
	}
	clear(w.paused)
	return nil
}

// rest waits until nothing is left to do. Dead letters that block are healed, and delivered. A clock that was set back
// delays events with a time of their own, and nothing else.
func (w *world) rest() error {
	if err := w.settle(); err != nil {
		return err
	}
	if w.offset < 0 {
		if err := w.await(w.heal, func() {}); err != nil {
			return err
		}
		if err := w.stepClock(0); err != nil {
			return err
		}
	}
	return w.await(w.heal, func() { w.model.rested(w.sink.clock()) })
}

// heal delivers dead letters that block, and returns what is left to do.
func (w *world) heal() (left string, err error) {
	for i := range w.settings {
		if d := &w.settings[i]; d.block {
			if err := w.redeliver(d.name, true); err != nil {
				return "", err
			}
		}
	}
	return w.left()
}

// await waits until no work is left, and calls then. It fails if progress stops.
func (w *world) await(todo func() (left string, err error), then func()) error {
	tick := time.NewTicker(look)
	defer tick.Stop()
	last, deadline := -1, time.Now()
	for {
		left, err := todo()
		if err != nil {
			return err
		}
		if left == "" {
			then()
			return nil
		}
		if now := w.sink.clock(); now != last {
			last, deadline = now, time.Now().Add(patience)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("does not come to rest: %s", left)
		}
		if err := w.alive(); err != nil {
			return err
		}
		<-tick.C
	}
}

// alive returns an error if a relay has ended unasked.
func (w *world) alive() error {
	for i, m := range w.relays {
		if m == nil {
			continue
		}
		select {
		case err := <-m.done:
			m.done <- err
			return fmt.Errorf("relay %d ended: %w", i, err)
		default:
		}
	}
	return nil
}

// left describes the remaining work, "" for nothing. After the clock was set back, events that are not available are none.
func (w *world) left() (left string, err error) {
	var routed []string
	for _, name := range eventTypes() {
		if len(w.routes.to(name)) > 0 {
			routed = append(routed, name)
		}
	}
	names := []string{""}
	for _, d := range w.settings {
		names = append(names, d.name)
	}
	if left, err = w.unnoted(); left != "" || err != nil {
		return left, err
	}
	query := `SELECT coalesce((SELECT string_agg(format('%s of %s is %s', event_id, destination, state), ', ') FROM outbox_deliveries
			WHERE (state NOT IN ('dead', 'unrouted') OR state = 'unrouted' AND event_type = ANY($1))
			AND NOT ($3 AND EXISTS (SELECT FROM outbox_events AS e WHERE e.id = event_id AND e.available_at > clock_timestamp()))), '')`
	if w.mode == outboxsql.ModeQueue {
		query += ` || coalesce((SELECT string_agg(format('%s is fresh', id), ', ') FROM outbox_events WHERE state = 'fresh'), '') || left($2::text[]::text, 0)`
	} else {
		query += ` || coalesce((SELECT string_agg(format('%s has not read to the end', n), ', ') FROM unnest($2::text[]) AS n
			WHERE NOT EXISTS (SELECT FROM outbox_positions AS p WHERE p.destination = n)
			OR EXISTS (SELECT FROM outbox_positions AS p WHERE p.destination = n AND (head < (SELECT coalesce(max(id), 0) FROM outbox_events)
				OR EXISTS (SELECT FROM outbox_events AS e WHERE e.id <@ p.open)))), '')
			|| coalesce((SELECT string_agg(format('a replay of %s runs', destination), ', ') FROM outbox_replays WHERE state = 'running'), '')`
	}
	err = w.pool.QueryRow(w.ctx, query, routed, names, w.offset < 0).Scan(&left)
	return left, err
}

// unnoted returns which destinations of a stream still have other routes than their relays, "" for none.
func (w *world) unnoted() (left string, err error) {
	if w.mode == outboxsql.ModeQueue {
		return "", nil
	}
	for _, d := range w.settings {
		var patterns []string
		for pattern, to := range w.routes {
			if slices.Contains(to, d.name) {
				patterns = append(patterns, pattern)
			}
		}
		var noted bool
		err := w.pool.QueryRow(w.ctx, `SELECT EXISTS (SELECT FROM outbox_routes WHERE destination = $1 AND since > 0 AND until_head IS NULL AND handed
			AND patterns @> $2 AND patterns <@ $2)`, d.name, patterns).Scan(&noted)
		if err != nil || !noted {
			return "the routes of " + d.name + " are not noted", err
		}
	}
	return "", nil
}

// reload stops all relays, and starts them with other routes. What is written before the relays have noted them may
// still follow the ones before.
func (w *world) reload(s step) error {
	settings := s.settings
	if s.rolling { // of two settings, that of the relay would count which has the destination
		settings = w.settings
		for _, d := range s.settings[len(settings):] {
			settings = append(slices.Clone(settings), d)
		}
	} else if err := w.stopAll(); err != nil {
		return err
	}
	seen, err := w.seen()
	if err != nil {
		return err
	}
	w.model.rerouted(w.sink.clock(), s.routes, settings, seen, w.mode)
	w.routes, w.settings = s.routes, settings
	for i := range w.relays {
		if s.rolling {
			if err := errors.Join(w.stop(i), w.start(i)); err != nil {
				return err
			}
		}
	}
	if err := w.startAll(); err != nil || !s.noted {
		return err
	}
	return w.await(w.unnoted, w.model.noted)
}

// seen returns which ids the search for routes has read.
func (w *world) seen() (map[int64]bool, error) {
	rows, err := w.pool.Query(w.ctx, `SELECT e.id FROM outbox_events AS e, outbox_positions AS p WHERE p.destination = '' AND e.id <= p.head AND NOT e.id <@ p.open`)
	if err != nil {
		return nil, err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	seen := make(map[int64]bool)
	for _, id := range ids {
		seen[id] = true
	}
	return seen, err
}

// place returns an id at some percent of all.
func (w *world) place(percent int) (text string, err error) {
	err = w.pool.QueryRow(w.ctx, `SELECT (coalesce(min(id), 1) + (coalesce(max(id), 1) - coalesce(min(id), 1)) * $1 / 100)::text FROM outbox_events`, percent).Scan(&text)
	return text, err
}

// nothingToDo are errors of requests that a table refuses in its state.
func nothingToDo(err error) bool {
	return errors.Is(err, ops.ErrQueue) || errors.Is(err, ops.ErrNoPosition) || errors.Is(err, ops.ErrReplayRunning) || errors.Is(err, ops.ErrNothingToReplay)
}

// replay sends a range to a destination again.
func (w *world) replay(s step) error {
	from, err := w.place(min(s.at, 70))
	if err != nil {
		return err
	}
	clock := w.sink.clock()
	r, err := w.operator.StartReplay(w.ctx, ops.ReplayRange{Destination: s.destination, From: from}, ops.Action{Actor: "test"})
	if err != nil {
		if nothingToDo(err) {
			return nil
		}
		return err
	}
	w.model.replays = append(w.model.replays, &replayed{destination: s.destination, clock: clock, era: len(w.model.eras) - 1, from: r.From, to: r.To, number: r.Number, rest: -1})
	return nil
}

// stopReplay stops a replay that runs.
func (w *world) stopReplay(destination string) error {
	all, err := w.operator.Replays(w.ctx)
	if err != nil && !nothingToDo(err) {
		return err
	}
	for _, r := range all {
		if r.Destination != destination || r.FinishedAt != nil {
			continue
		}
		if _, err := w.operator.StopReplay(w.ctx, r.ID, ops.Action{Actor: "test"}); err != nil && !errors.Is(err, ops.ErrNoReplay) {
			return err
		}
		w.model.disturb(destination)
	}
	return nil
}

// seek moves a position.
func (w *world) seek(s step) error {
	to := map[int]string{0: "beginning", 100: "now"}[s.at]
	if to == "" {
		var err error
		if to, err = w.place(s.at); err != nil {
			return err
		}
	}
	clock := w.sink.clock()
	w.model.faulty(clock) // the owner can no longer record the deliveries since its last write
	m, err := w.operator.Seek(w.ctx, s.destination, to, ops.Action{Actor: "test"})
	if err != nil {
		if nothingToDo(err) {
			return nil
		}
		return err
	}
	w.model.seeks = append(w.model.seeks, &sought{destination: s.destination, clock: clock, from: m.From, to: m.To, after: w.sink.clock(), rest: -1})
	w.model.skip(s.destination, m.To)
	return nil
}

// dead returns the dead letters of a destination.
func (w *world) dead(destination string) ([]int64, error) {
	rows, err := w.pool.Query(w.ctx, `SELECT event_id FROM outbox_deliveries WHERE destination = $1 AND state = 'dead'`, destination)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

// discard discards the dead letters of a destination.
func (w *world) discard(destination string) error {
	ids, err := w.dead(destination)
	if err != nil || len(ids) == 0 {
		return err
	}
	w.sink.record(discarded, destination, 0, ids...) // events that wait for them may continue before the call returns
	r, err := w.operator.DiscardDeadLetters(w.ctx, ops.DeadLetterFilter{Destination: destination, Events: ids}, ops.BulkAction{Actor: "test"})
	if err == nil && r.Done != int64(len(ids)) {
		err = fmt.Errorf("%d of %d dead letters were discarded", r.Done, len(ids))
	}
	return err
}

// redeliver delivers the dead letters of a destination again.
func (w *world) redeliver(destination string, heal bool) error {
	ids, err := w.dead(destination)
	if err != nil || len(ids) == 0 {
		return err
	}
	if heal {
		w.sink.heal(destination, ids...)
	}
	r, err := w.operator.ReplayDeadLetters(w.ctx, ops.DeadLetterFilter{Destination: destination, Events: ids}, ops.BulkAction{Actor: "test"})
	if err == nil && r.Done != int64(len(ids)) {
		err = fmt.Errorf("%d of %d dead letters were replayed", r.Done, len(ids))
	}
	w.model.redelivered(destination, ids, heal)
	return err
}

// convert makes a stream of a queue, or the reverse.
func (w *world) convert() error {
	// What a seek made a destination get again is delivered by the routes of the queue, which a later reload may change.
	if slices.ContainsFunc(w.model.seeks, func(s *sought) bool { return s.rest < 0 }) {
		if err := w.rest(); err != nil {
			return err
		}
	}
	if err := w.commitLate(); err != nil {
		return err
	}
	if err := w.stopAll(); err != nil {
		return err
	}
	to := outboxsql.ModeQueue
	if w.mode == to {
		to = outboxsql.ModeStream
	}
	conn, err := pgx.Connect(w.ctx, w.url)
	if err != nil {
		return err
	}
	known := func(name string) bool {
		return slices.ContainsFunc(w.settings, func(d destination) bool { return d.name == name })
	}
	err = outboxsql.SetMode(w.ctx, conn, outboxsql.DefaultSchema, to, outboxsql.ModeOptions{
		Route: w.routes.to, Known: known, Unordered: func(name string) bool { return known(name) && find(w.settings, name).order == none },
	})
	err = errors.Join(err, conn.Close(w.ctx))
	if errors.Is(err, outboxsql.ErrReplay) || errors.Is(err, outboxsql.ErrShards) {
		return w.startAll()
	}
	if err != nil {
		return err
	}
	w.mode = to
	w.model.converted(w.sink.clock(), to)
	return w.startAll()
}

// row is a row of outbox_deliveries.
type row struct {
	key
	state   string
	replays int
}

// verdict compares the record and the tables with the model.
func (w *world) verdict() error {
	rows, err := w.pool.Query(w.ctx, `SELECT destination, event_id, state, replays FROM outbox_deliveries`)
	if err != nil {
		return err
	}
	stored, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (x row, err error) {
		err = r.Scan(&x.destination, &x.id, &x.state, &x.replays)
		return x, err
	})
	if err != nil {
		return err
	}
	var held int
	if err := w.pool.QueryRow(w.ctx, `SELECT count(*) FROM outbox_deliveries WHERE lease_owner IS NOT NULL`).Scan(&held); err != nil {
		return err
	}
	faults := w.model.verdict(w.sink, stored, strings.Contains(w.log.String(), "claim lost") || strings.Contains(w.log.String(), "no connection to renew the leases"))
	if held > 0 {
		faults = append(faults, fmt.Sprintf("%d leases are left", held))
	}
	if len(faults) == 0 {
		return nil
	}
	return errors.New(strings.Join(faults[:min(len(faults), 12)], "\n"))
}

// dump shows the tables.
func (w *world) dump() string {
	var b strings.Builder
	for _, query := range []string{
		`SELECT format('%s %s %s %s %s replays=%s attempts=%s', event_id, destination, state, ordering_key, available_at - now(), replays, attempts) FROM outbox_deliveries ORDER BY destination, event_id LIMIT 30`,
		`SELECT format('position %s head=%s open=%s owner=%s', destination, head, open, owner) FROM outbox_positions ORDER BY destination`,
		`SELECT format('routes of %s since %s: head=%s open=%s until=%s open=%s %s handed=%s past=%s', destination, since, head, open, until_head, until_open, patterns, handed, past) FROM outbox_routes ORDER BY destination, since`,
		`SELECT format('replay of %s: %s to %s %s', destination, from_id, to_id, state) FROM outbox_replays`,
		`SELECT format('%s events are %s', count(*), state) FROM outbox_events GROUP BY state`,
	} {
		rows, err := w.pool.Query(w.ctx, query)
		if err != nil {
			fmt.Fprintln(&b, err)
			continue
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			fmt.Fprintln(&b, err)
		}
		b.WriteString(strings.Join(slices.Concat(lines, []string{""}), "\n"))
	}
	return b.String()
}
