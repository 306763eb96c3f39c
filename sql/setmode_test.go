package outboxsql_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// setMode changes the mode and fails the test if it cannot.
func setMode(tb testing.TB, conn *pgx.Conn, mode outboxsql.Mode, o outboxsql.ModeOptions) {
	tb.Helper()
	if err := outboxsql.SetMode(tb.Context(), conn, "public", mode, o); err != nil {
		tb.Fatalf("%s: %v", mode, err)
	}
	if s := state(tb, conn, "public"); s.Mode != mode || s.Becoming != "" {
		tb.Fatalf("state %+v, want %s", s, mode)
	}
}

// openIDs are the events that a first destination of the stream would get.
const openIDs = `SELECT e.id FROM outbox_events AS e, outbox_mode AS m WHERE e.id > m.origin_head
	UNION ALL SELECT e.id FROM outbox_mode AS m, unnest(m.origin_open) AS s JOIN outbox_events AS e ON e.id >= lower(s) AND e.id < upper(s)
	ORDER BY id`

const freshIDs = `SELECT id FROM outbox_events WHERE state = 'fresh' ORDER BY id`

// same fails the test unless both lists have the same ids.
func same(tb testing.TB, what string, got, want []int64) {
	tb.Helper()
	if slices.Equal(got, want) {
		return
	}
	has := make(map[int64]int)
	for _, id := range want {
		has[id]++
	}
	for _, id := range got {
		has[id]--
	}
	var wrong []string
	for id, n := range has {
		if n != 0 && len(wrong) < 10 {
			wrong = append(wrong, fmt.Sprintf("%d: %+d", id, n))
		}
	}
	tb.Errorf("%s: %d ids, want %d; missing or too many: %v", what, len(got), len(want), wrong)
}

// tables runs a test on a plain table, on one that is partitioned, and on one
// that is so since before its first event.
func tables(t *testing.T, test func(t *testing.T, conn *pgx.Conn)) {
	t.Helper()
	for name, days := range map[string]bool{"plain": false, "partitioned": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, testenv.Database(t))
			migrate(t, conn, "public", outboxsql.BellAuto)
			if days {
				writeOne(t, conn)
				partition(t, conn, "public")
				exec(t, conn, `DELETE FROM outbox_events`)
			}
			test(t, conn)
		})
	}
}

// crowd writes beside a change until stop is called, which returns the ids of what was
// committed: plain transactions, rolled back ones, with savepoints, and with ids
// that are drawn before they are inserted.
func crowd(t *testing.T, url string) (stop func() []int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var all sync.WaitGroup
	var mu sync.Mutex
	var committed []int64
	for w := range 3 {
		conn := connect(t, url)
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				ids, err := writeSome(context.WithoutCancel(ctx), conn, n%5)
				if err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
				mu.Lock()
				committed = append(committed, ids...)
				mu.Unlock()
			}
		})
	}
	return func() []int64 {
		cancel()
		all.Wait()
		slices.Sort(committed)
		return committed
	}
}

// writeSome writes in one of five ways and returns the ids of what is committed.
func writeSome(ctx context.Context, conn *pgx.Conn, way int) (ids []int64, err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	insert := func() {
		var id int64
		if err == nil {
			err = tx.QueryRow(ctx, `INSERT INTO outbox_events (event_type, payload) VALUES ('late', '1') RETURNING id`).Scan(&id)
			ids = append(ids, id)
		}
	}
	do := func(sql string, args ...any) {
		if err == nil {
			_, err = tx.Exec(ctx, sql, args...)
		}
	}
	switch way {
	case 0:
		insert()
	case 1:
		insert()
		do(`SAVEPOINT s`)
		insert()
		do(`ROLLBACK TO s`)
		insert()
		if err == nil {
			ids = append(ids[:1], ids[2:]...)
		}
	case 2:
		insert()
		return nil, err
	case 3:
		var id int64
		if err := tx.QueryRow(ctx, `SELECT nextval(pg_get_serial_sequence('outbox_events', 'id'))`).Scan(&id); err != nil {
			return nil, err
		}
		do(`SELECT pg_sleep(0.001)`)
		do(`INSERT INTO outbox_events (id, event_type, payload) VALUES ($1, 'late', '1')`, id)
		ids = append(ids, id)
	default:
		insert()
		insert()
	}
	if err != nil {
		return nil, err
	}
	return ids, tx.Commit(ctx)
}

// fill makes a queue in which about a third of n events is done, a third is deferred
// with rows in all states, and a third is fresh, the last hundredth all fresh.
func fill(tb testing.TB, conn *pgx.Conn, n int) {
	tb.Helper()
	exec(tb, conn, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, state, processed_at, available_at)
		SELECT 'type.' || i % 4, 'order', i % 1000, '1', s, CASE s WHEN 'done' THEN now() END, CASE WHEN i % 50 = 0 THEN now() + interval '1 hour' END
		FROM (SELECT i, CASE WHEN i > $1 * 99 / 100 THEN 'fresh' ELSE (ARRAY['fresh', 'deferred', 'done'])[1 + i / 7 % 3] END AS s FROM generate_series(1, $1::int) AS i) AS e`, n)
	exec(tb, conn, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, ordering_key, available_at, last_error, lease_owner, lease_token, lease_until)
		SELECT id, CASE WHEN s IN ('delayed', 'unrouted') THEN '' ELSE 'd' || id % 2 END, event_type, CASE s WHEN 'delayed' THEN 'retry' ELSE s END, 3, 'order/' || aggregate_id,
			CASE s WHEN 'delayed' THEN now() + interval '1 hour' ELSE now() END, 'no', x, x + 0, CASE WHEN x IS NOT NULL THEN now() + interval '1 hour' END
		FROM (SELECT *, CASE s WHEN 'running' THEN 7 END AS x FROM (
			SELECT *, (ARRAY['retry', 'parked', 'dead', 'delayed', 'unrouted', 'running'])[1 + id % 6] AS s FROM outbox_events WHERE state = 'deferred') AS e) AS e`)
	exec(tb, conn, `UPDATE outbox_events AS e SET state = 'done', processed_at = now() FROM outbox_deliveries AS d WHERE d.event_id = e.id AND d.state = 'dead'`)
}

const storedRows = `SELECT format('%s %s %s %s %s', event_id, destination, CASE state WHEN 'running' THEN 'retry' ELSE state END, attempts, ordering_key)
	FROM outbox_deliveries WHERE destination <> '' OR last_error = 'no' ORDER BY event_id, destination`

// TestQueueToStream: what is open is what was fresh, and what came up beside the
// change. Stored deliveries are as they were, and nobody holds them any more.
func TestQueueToStream(t *testing.T) {
	t.Parallel()
	tables(t, func(t *testing.T, conn *pgx.Conn) {
		const n = 100_000
		fill(t, conn, n)
		exec(t, conn, `INSERT INTO outbox_positions (destination, head) VALUES ('old', 1000000000); INSERT INTO outbox_routes (destination, pattern, head) VALUES ('old', '*', 1)`)
		fresh, rows := values[int64](t, conn, freshIDs), values[string](t, conn, storedRows)
		exec(t, conn, `DELETE FROM outbox_positions`) // would be ahead of the sequence
		stop := crowd(t, conn.Config().ConnString())
		setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
		late := stop()
		aside := values[int64](t, conn, `SELECT event_id FROM outbox_deliveries WHERE destination = '' AND last_error IS NULL ORDER BY 1`)
		now := values[int64](t, conn, freshIDs)
		all := append(slices.Clone(fresh), late...)
		slices.Sort(all)
		both := append(slices.Clone(now), aside...)
		slices.Sort(both)
		same(t, "fresh or put aside", both, all)
		same(t, "open", values[int64](t, conn, openIDs), now)
		if got := values[string](t, conn, storedRows); !slices.Equal(got, rows) {
			t.Errorf("%d stored deliveries have become %d others", len(rows), len(got))
		}
		if n := value[int](t, conn, `SELECT count(*) FROM outbox_deliveries WHERE state = 'running'`); n > 0 {
			t.Errorf("%d leases are left", n)
		}
		// n / 21 ranges, of which 4,000 fit.
		ranges := value[int](t, conn, `SELECT count(*) FROM outbox_mode, unnest(origin_open)`)
		if ranges != 4000 || len(aside) == 0 || slices.Max(aside) >= value[int64](t, conn, `SELECT lower(origin_open) FROM outbox_mode`) {
			t.Errorf("%d ranges, %d events aside", ranges, len(aside))
		}
		noFreshIndex(t, conn)
		if n := value[int](t, conn, `SELECT (SELECT count(*) FROM outbox_positions) + (SELECT count(*) FROM outbox_routes)`); n > 0 {
			t.Errorf("%d positions and routes are left of before", n)
		}
		before := value[string](t, conn, `SELECT m::text FROM outbox_mode AS m`)
		setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
		if after := value[string](t, conn, `SELECT m::text FROM outbox_mode AS m`); after != before {
			t.Error("done again, it changes something")
		}
	})
}

func noFreshIndex(tb testing.TB, conn *pgx.Conn) {
	tb.Helper()
	if names := values[string](tb, conn, `SELECT indexrelid::regclass::text FROM pg_index WHERE pg_get_expr(indpred, indrelid) LIKE '%fresh%'`); len(names) > 0 {
		tb.Errorf("indexes of fresh events: %v", names)
	}
}

// TestQueueToStreamRanges: a range goes from one fresh event to the next as long as
// nothing marked is in between; a backlog at the end needs none.
func TestQueueToStreamRanges(t *testing.T) {
	t.Parallel()
	tables(t, func(t *testing.T, conn *pgx.Conn) {
		first := value[int64](t, conn, `SELECT outbox_last_id()`)
		exec(t, conn, `INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 100000)`)
		mark := func(where string) {
			t.Helper()
			exec(t, conn, `UPDATE outbox_events SET state = 'done' WHERE id - $1 `+where, first)
		}
		exec(t, conn, `DELETE FROM outbox_events WHERE id - $1 BETWEEN 20 AND 25 OR id - $1 BETWEEN 60000 AND 69999`, first)
		mark(`IN (1, 2, 10, 11, 40, 90000)`)
		setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
		want := fmt.Sprintf("%d {[%d,%d),[%d,%d),[%d,%d)}", first+90000, first+3, first+10, first+12, first+40, first+41, first+90000)
		if got := value[string](t, conn, `SELECT origin_head || ' ' || origin_open FROM outbox_mode`); got != want {
			t.Errorf("origin %s, want %s", got, want)
		}
		same(t, "open", values[int64](t, conn, openIDs), values[int64](t, conn, freshIDs))
	})
}

// TestNewStream: on a table without events, and on one of which nothing is done.
func TestNewStream(t *testing.T) {
	t.Parallel()
	tables(t, func(t *testing.T, conn *pgx.Conn) {
		setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
		const origin = `SELECT origin_head || ' ' || origin_open FROM outbox_mode`
		if got := value[string](t, conn, origin); got != "0 {}" {
			t.Errorf("a new stream begins at %s", got)
		}
		writeOne(t, conn)
		setMode(t, conn, outboxsql.ModeQueue, outboxsql.ModeOptions{})
		if got := values[int64](t, conn, freshIDs); len(got) != 1 {
			t.Errorf("waiting in the queue: %v", got)
		}
		setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
		if got := value[string](t, conn, origin); got != "0 {}" {
			t.Errorf("a stream of which nothing is delivered begins at %s", got)
		}
		migrate(t, conn, "public", outboxsql.BellKeep)
		noFreshIndex(t, conn)
		if len(values[int64](t, conn, openIDs)) != 1 {
			t.Error("its event is not open")
		}
	})
}

// TestQueueToStreamLate: a transaction that drew an id below the last mark and has
// not ended is waited for, whatever it has done with the id; it is named in the end.
func TestQueueToStreamLate(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]string{
		"inserted":    `INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1')`,
		"drawn":       `SELECT nextval(pg_get_serial_sequence('outbox_events', 'id'))`,
		"rolled back": `SAVEPOINT s; INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1'); ROLLBACK TO s`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tables(t, func(t *testing.T, conn *pgx.Conn) {
				other := connect(t, conn.Config().ConnString())
				exec(t, other, `SET application_name = 'the late one'`)
				exec(t, other, `BEGIN`)
				exec(t, other, late, pgx.QueryExecModeSimpleProtocol)
				id := value[int64](t, conn, `SELECT outbox_last_id()`)
				exec(t, conn, `INSERT INTO outbox_events (event_type, payload, state) VALUES ('a', '1', 'done')`)
				err := outboxsql.SetMode(t.Context(), conn, "public", outboxsql.ModeStream, outboxsql.ModeOptions{LockPatience: time.Millisecond})
				if err == nil || !strings.Contains(err.Error(), "the late one") {
					t.Errorf("beside a transaction that may have an id below the mark: %v", err)
				}
				if s := state(t, conn, "public"); s.Mode != outboxsql.ModeQueue || s.Becoming != "" {
					t.Errorf("state %+v", s)
				}
				if name == "drawn" {
					exec(t, other, `INSERT INTO outbox_events (id, event_type, payload) VALUES ($1, 'a', '1')`, id)
				}
				exec(t, other, `COMMIT`)
				setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
				same(t, "open", values[int64](t, conn, openIDs), values[int64](t, conn, freshIDs))
			})
		})
	}
}

// TestSetModeBesideRelays: relays are named, and nothing is changed. What goes on
// beside the change waits.
func TestSetModeBesideRelays(t *testing.T) {
	t.Parallel()
	conn := connect(t, testenv.Database(t))
	err := outboxsql.SetMode(t.Context(), conn, "public", outboxsql.ModeStream, outboxsql.ModeOptions{})
	if !errors.Is(err, outboxsql.ErrNotMigrated) {
		t.Errorf("without tables: %v", err)
	}
	migrate(t, conn, "public", outboxsql.BellAuto)
	relay := connect(t, conn.Config().ConnString())
	exec(t, relay, `SET application_name = 'notifyd/keeper'`)
	if err := outboxsql.HoldMode(t.Context(), relay, "public", outboxsql.ModeQueue); err != nil {
		t.Fatal(err)
	}
	pid := value[int](t, relay, `SELECT pg_backend_pid()`)
	err = outboxsql.SetMode(t.Context(), conn, "public", outboxsql.ModeStream, outboxsql.ModeOptions{})
	if !errors.Is(err, outboxsql.ErrRelays) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d,", pid)) || !strings.Contains(err.Error(), "notifyd/keeper") {
		t.Errorf("beside a relay: %v", err)
	}
	setMode(t, conn, outboxsql.ModeQueue, outboxsql.ModeOptions{}) // which it is
	exec(t, relay, `SELECT pg_advisory_unlock_all()`)
	setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
	if err := outboxsql.HoldMode(t.Context(), relay, "public", outboxsql.ModeStream); err != nil {
		t.Errorf("after it: %v", err)
	}
	if n := value[int](t, conn, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()`); n != 0 {
		t.Errorf("%d locks are left", n)
	}
	if err := outboxsql.SetMode(t.Context(), conn, "public", "log", outboxsql.ModeOptions{}); err == nil {
		t.Error("an unknown mode is taken")
	}
}

// stream is what a test knows of who has got what.
type stream struct {
	routes map[string][]string
	heads  map[string]int64
	gaps   map[string]map[int64]bool // open below the head
}

func (s *stream) misses(destination string, id int64) bool {
	return id > s.heads[destination] || s.gaps[destination][id]
}

// newStream makes a stream of n events with destinations a, b and c, the last one far
// behind, and rows of what could not be delivered.
func newStream(tb testing.TB, conn *pgx.Conn, n int) *stream {
	tb.Helper()
	exec(tb, conn, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, state)
		SELECT 'type.' || i % 5, CASE WHEN i % 3 > 0 THEN 'order' END, nullif(i % 1000, 0)::text, '1', CASE WHEN i <= $1 / 20 THEN 'done' ELSE 'fresh' END FROM generate_series(1, $1::int) AS i`, n)
	setMode(tb, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
	first, last := value[int64](tb, conn, `SELECT origin_head FROM outbox_mode`), value[int64](tb, conn, `SELECT outbox_last_id()`)
	s := &stream{
		routes: map[string][]string{"type.0": {"a"}, "type.1": {"a", "b"}, "type.2": {"a", "b", "c", "new"}, "type.3": {"c"}},
		heads:  map[string]int64{"a": last - 100, "b": last - 150, "c": last - int64(n)/4, "": last - 120},
		gaps:   make(map[string]map[int64]bool),
	}
	random := rand.New(rand.NewPCG(1, uint64(n)))
	for name, head := range s.heads {
		s.gaps[name] = make(map[int64]bool)
		var open []string
		for at := first + 1 + random.Int64N(500); at < head-100 && name != ""; at += random.Int64N(900) + 100 {
			high := at + 1 + random.Int64N(5)
			open = append(open, fmt.Sprintf("[%d,%d)", at, high))
			for id := at; id < high; id++ {
				s.gaps[name][id] = true
			}
		}
		exec(tb, conn, `INSERT INTO outbox_positions (destination, head, open) VALUES ($1, $2, $3::text::int8multirange)`, name, head, "{"+strings.Join(open, ",")+"}")
	}
	s.store(tb, conn)
	return s
}

// store writes rows for some of what the destinations are past, and for event types
// without a route.
func (s *stream) store(tb testing.TB, conn *pgx.Conn) {
	tb.Helper()
	states := []string{"retry", "parked", "dead"}
	var ids []int64
	var names, in []string
	for _, e := range events(tb, conn) {
		if e.id%17 != 0 && s.routes[e.eventType] != nil || e.state != "fresh" {
			continue
		}
		for _, d := range s.routes[e.eventType] {
			if d != "new" && !s.misses(d, e.id) {
				ids, names, in = append(ids, e.id), append(names, d), append(in, states[e.id/17%3])
			}
		}
		if s.routes[e.eventType] == nil && !s.misses("", e.id) {
			ids, names, in = append(ids, e.id), append(names, ""), append(in, "unrouted")
		}
	}
	exec(tb, conn, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state, last_error)
		SELECT e.id, d, e.event_type, s, 'no' FROM unnest($1::bigint[], $2::text[], $3::text[]) AS p(id, d, s) JOIN outbox_events AS e USING (id)`, ids, names, in)
}

type row struct {
	id        int64
	eventType string
	state     string
}

func events(tb testing.TB, conn *pgx.Conn) []row {
	tb.Helper()
	rows, err := conn.Query(tb.Context(), `SELECT id, event_type, state FROM outbox_events ORDER BY id`)
	if err != nil {
		tb.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (e row, err error) { return e, r.Scan(&e.id, &e.eventType, &e.state) })
	if err != nil {
		tb.Fatal(err)
	}
	return list
}

// deliveries returns the states of all rows, by event and destination.
func deliveries(tb testing.TB, conn *pgx.Conn) map[string]string {
	tb.Helper()
	all := make(map[string]string)
	for _, line := range values[string](tb, conn, `SELECT event_id || '/' || destination || ' ' || state FROM outbox_deliveries`) {
		key, state, _ := strings.Cut(line, " ")
		all[key] = state
	}
	return all
}

// owed returns what is yet to be delivered: by "event/destination", and "event/" for
// what has no route. marked says whether the table is a queue.
func (s *stream) owed(tb testing.TB, conn *pgx.Conn, marked bool) map[string]bool { //nolint:revive // two tables
	tb.Helper()
	owed := make(map[string]bool)
	rows := deliveries(tb, conn)
	for key, state := range rows {
		if state != "dead" {
			owed[key] = true
		}
	}
	for _, e := range events(tb, conn) {
		names := s.routes[e.eventType]
		if names == nil {
			names = []string{""}
		}
		for _, d := range names {
			key := fmt.Sprintf("%d/%s", e.id, d)
			waits := s.misses(d, e.id) && e.state == "fresh" && s.heads[d] > 0
			if marked {
				waits = e.state == "fresh"
			}
			// One that is new gets what nobody of its route has got.
			if d == "new" && !marked {
				waits = s.misses("a", e.id) && s.misses("b", e.id) && s.misses("c", e.id) && e.state == "fresh"
			}
			if waits {
				owed[key] = true
			}
		}
	}
	return owed
}

// TestStreamToQueue: what is owed to each destination is owed to it in the queue.
func TestStreamToQueue(t *testing.T) {
	t.Parallel()
	tables(t, func(t *testing.T, conn *pgx.Conn) {
		s := newStream(t, conn, 100_000)
		owed, rows := s.owed(t, conn, false), deliveries(t, conn)
		stop := crowd(t, conn.Config().ConnString())
		o := outboxsql.ModeOptions{Route: func(eventType string) []string { return s.routes[eventType] }, Unordered: func(d string) bool { return d == "b" }}
		// A row that somebody holds breaks it off in the middle.
		holder := connect(t, conn.Config().ConnString())
		exec(t, holder, `BEGIN`)
		exec(t, holder, `SELECT FROM outbox_deliveries WHERE event_id = (SELECT min(event_id) FROM outbox_deliveries WHERE event_id > (SELECT origin_head + 60000 FROM outbox_mode)) FOR UPDATE`)
		o.LockPatience = time.Millisecond
		err := outboxsql.SetMode(t.Context(), conn, "public", outboxsql.ModeQueue, o)
		if sqlState(err) != "55P03" {
			t.Errorf("beside somebody who holds a row: %v", err)
		}
		if done := value[int](t, conn, `SELECT count(*) FROM outbox_events WHERE state <> 'fresh'`); done < 50_000 || done > 70_000 {
			t.Errorf("%d events are marked", done)
		}
		for _, mode := range []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} {
			if err := outboxsql.HoldMode(t.Context(), holder, "public", mode); err == nil || !strings.Contains(err.Error(), "notifyd migrate --mode queue") {
				t.Errorf("a %s's relay in between: %v", mode, err)
			}
		}
		if err := outboxsql.SetMode(t.Context(), conn, "public", outboxsql.ModeStream, o); !errors.Is(err, outboxsql.ErrModeChanging) {
			t.Errorf("the way back in between: %v", err)
		}
		exec(t, holder, `COMMIT`)
		o.LockPatience = 0
		setMode(t, conn, outboxsql.ModeQueue, o)
		for _, id := range stop() {
			owed[fmt.Sprintf("%d/", id)] = true
		}
		s.compare(t, conn, owed, rows)
		setMode(t, conn, outboxsql.ModeQueue, o)
		queueAsNew(t, conn)
	})
}

// compare compares what is owed with what is to be, and rows with those of before.
func (s *stream) compare(t *testing.T, conn *pgx.Conn, owed map[string]bool, before map[string]string) {
	t.Helper()
	got, wrong := s.owed(t, conn, true), 0
	for key := range got {
		if !owed[key] && wrong < 10 {
			t.Errorf("%s was delivered, and waits again", key)
			wrong++
		}
	}
	for key := range owed {
		if !got[key] && wrong < 10 {
			t.Errorf("%s is lost", key)
			wrong++
		}
	}
	rows := deliveries(t, conn)
	for key, state := range before {
		if rows[key] != state {
			t.Errorf("the delivery %s is %q, was %q", key, rows[key], state)
		}
	}
	for _, line := range values[string](t, conn, `SELECT format('%s/%s %s %s', d.event_id, d.destination, d.state, d.ordering_key) FROM outbox_deliveries AS d JOIN outbox_events AS e ON e.id = d.event_id
		WHERE d.last_error IS NULL AND d.state || ' ' || coalesce(d.ordering_key, '') <>
			CASE WHEN e.aggregate_id IS NULL OR d.destination = 'b' THEN 'retry ' ELSE 'parked ' || coalesce(e.aggregate_type, '') || '/' || e.aggregate_id END LIMIT 5`) {
		t.Errorf("a delivery that was made is %s", line)
	}
	if n := value[int](t, conn, `SELECT count(*) FROM outbox_events AS e WHERE (state = 'done') <> (processed_at IS NOT NULL)
		AND id > (SELECT min(id) FROM outbox_events WHERE processed_at IS NOT NULL) OR state = 'deferred' AND NOT EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.event_id = e.id AND d.state <> 'dead')`); n > 0 {
		t.Errorf("%d events are not marked as a queue marks them", n)
	}
}

// queueAsNew compares the index with that of a new table.
func queueAsNew(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	const index = `SELECT replace(pg_get_indexdef(indexrelid), ' ON ONLY ', ' ON ') || ' ' || indisvalid FROM pg_index WHERE indexrelid = to_regclass('outbox_events_fresh')`
	if got, want := value[string](t, conn, index), "CREATE INDEX outbox_events_fresh ON public.outbox_events USING btree (id) WHERE (state = 'fresh'::text) true"; got != want {
		t.Errorf("index %s", got)
	}
	if n := value[int](t, conn, `SELECT (SELECT count(*) FROM outbox_positions) + (SELECT count(*) FROM outbox_routes)`); n > 0 {
		t.Errorf("%d positions and routes are left", n)
	}
	if n := value[int](t, conn, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox_events'::regclass
		AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = inhrelid AND indisvalid AND pg_get_expr(indpred, indrelid) LIKE '%fresh%')`); n > 0 {
		t.Errorf("%d partitions have no index of fresh events", n)
	}
}

// TestStreamToQueueWithoutRoutes: where all destinations have got the same, nobody has
// to know who gets what; where not, nothing is changed.
func TestStreamToQueueWithoutRoutes(t *testing.T) {
	t.Parallel()
	tables(t, func(t *testing.T, conn *pgx.Conn) {
		exec(t, conn, `INSERT INTO outbox_events (event_type, payload, state) SELECT 'a', '1', CASE i WHEN 1 THEN 'done' ELSE 'fresh' END FROM generate_series(1, 100) AS i`)
		setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
		at := value[int64](t, conn, `SELECT origin_head - 1 FROM outbox_mode`)
		exec(t, conn, `DELETE FROM outbox_events WHERE id - $1 BETWEEN 41 AND 50`, at)
		position := func(name string, head int64, low, high int64) {
			exec(t, conn, `INSERT INTO outbox_positions (destination, head, open) VALUES ($1, $2::bigint + $3, int8multirange(int8range($2::bigint + $4, $2::bigint + $5)))`, name, at, head, low, high)
		}
		// Different by events that are not there.
		position("a", 45, 20, 22)
		position("b", 41, 20, 22)
		position("", 40, 20, 22)
		position("c", 46, 20, 21)
		err := outboxsql.SetMode(t.Context(), conn, "public", outboxsql.ModeQueue, outboxsql.ModeOptions{})
		if !errors.Is(err, outboxsql.ErrPositions) || !strings.Contains(err.Error(), fmt.Sprintf("event %d ", at+21)) || !strings.Contains(err.Error(), "--config") {
			t.Errorf("positions that differ: %v", err)
		}
		if s := state(t, conn, "public"); s.Mode != outboxsql.ModeStream || s.Becoming != "" {
			t.Errorf("state %+v", s)
		}
		exec(t, conn, `DELETE FROM outbox_positions WHERE destination = 'c'`)
		setMode(t, conn, outboxsql.ModeQueue, outboxsql.ModeOptions{})
		want := []int64{at + 20, at + 21}
		for id := at + 51; id <= at+100; id++ {
			want = append(want, id)
		}
		same(t, "fresh", values[int64](t, conn, freshIDs), want)
		queueAsNew(t, conn)
	})
}

// TestStreamToQueueUnread: a stream that nobody has read waits as it did in the queue.
func TestStreamToQueueUnread(t *testing.T) {
	t.Parallel()
	tables(t, func(t *testing.T, conn *pgx.Conn) {
		fill(t, conn, 2000)
		fresh, rows := values[int64](t, conn, freshIDs), values[string](t, conn, storedRows)
		for range 2 {
			setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
			setMode(t, conn, outboxsql.ModeQueue, outboxsql.ModeOptions{Route: func(string) []string { return []string{"d0", "d1"} }})
		}
		same(t, "fresh", values[int64](t, conn, freshIDs), fresh)
		if got := values[string](t, conn, storedRows); !slices.Equal(got, rows) {
			t.Error("stored deliveries have changed")
		}
		queueAsNew(t, conn)
	})
}

// TestStreamToQueueKeys: what is parked has the key that relays make of an aggregate.
func TestStreamToQueueKeys(t *testing.T) {
	t.Parallel()
	conn := connect(t, testenv.Database(t))
	migrate(t, conn, "public", outboxsql.BellAuto)
	setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
	var want []string
	for _, e := range [][2]string{
		{"order", "7"}, {"", "7"}, {"order", ""}, {"a/b", "c"}, {"order", strings.Repeat("x", 194)}, {"order", strings.Repeat("x", 195)},
		{"o", strings.Repeat("ä", 150)}, {"or", strings.Repeat("ä", 150)}, {"o", strings.Repeat("漢", 90)}, {"or", strings.Repeat("漢", 90)}, {"ord", strings.Repeat("漢", 90)},
		{"o", strings.Repeat("😀", 60)}, {"or", strings.Repeat("😀", 60)}, {"ord", strings.Repeat("😀", 60)}, {"orde", strings.Repeat("😀", 60)}, {strings.Repeat("t", 1000), "1"},
	} {
		id := value[int64](t, conn, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) VALUES ('a', nullif($1, ''), nullif($2, ''), '1') RETURNING id`, e[0], e[1])
		want = append(want, fmt.Sprint(id, " ", keyOf(e[0], e[1])))
	}
	exec(t, conn, `INSERT INTO outbox_positions (destination, head) VALUES ('x', 0), ('y', outbox_last_id())`)
	setMode(t, conn, outboxsql.ModeQueue, outboxsql.ModeOptions{Route: func(string) []string { return []string{"x", "y"} }})
	got := values[string](t, conn, `SELECT event_id || ' ' || coalesce(ordering_key, '') FROM outbox_deliveries WHERE destination = 'x' ORDER BY event_id`)
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			t.Errorf("key %d: %q", i, want[i])
		}
	}
}

// keyOf is appendKey of package dispatch.
func keyOf(aggregateType, aggregateID string) string {
	key := aggregateType + "/" + aggregateID
	if aggregateID == "" {
		return ""
	}
	if len(key) <= 200 {
		return key
	}
	end := 128
	for !utf8.RuneStart(key[end]) {
		end--
	}
	return fmt.Sprintf("%s#%x", key[:end], sha256.Sum256([]byte(key)))
}
