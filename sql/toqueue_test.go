package outboxsql_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/modelock"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// stream is the test's record of which destination has received which event.
type stream struct {
	routes map[string][]string
	heads  map[string]int64
	gaps   map[string]map[int64]bool // open below the head
}

func (s *stream) misses(destination string, id int64) bool {
	return id > s.heads[destination] || s.gaps[destination][id]
}

// newStream makes a stream of n events with destinations a, b and c, the last one far behind, and
// rows of failed deliveries.
func newStream(tb testing.TB, conn *pgx.Conn, n int) *stream {
	tb.Helper()
	testdb.Exec(tb, conn, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, state)
		SELECT 'type.' || i % 5, CASE WHEN i % 3 > 0 THEN 'order' END, nullif(i % 1000, 0)::text, '1', CASE WHEN i <= $1 / 20 THEN 'done' ELSE 'fresh' END FROM generate_series(1, $1::int) AS i`, n)
	setMode(tb, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
	first, last := testdb.One[int64](tb, conn, `SELECT origin_head FROM outbox_mode`), testdb.One[int64](tb, conn, `SELECT outbox_last_id()`)
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
		testdb.Exec(tb, conn, `INSERT INTO outbox_positions (destination, head, open) VALUES ($1, $2, $3::text::int8multirange)`, name, head, "{"+strings.Join(open, ",")+"}")
	}
	s.store(tb, conn)
	return s
}

// store writes rows for some of the events that the destinations have passed, and for event types
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
	testdb.Exec(tb, conn, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state, last_error)
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
	for _, line := range testdb.List[string](tb, conn, `SELECT event_id || '/' || destination || ' ' || state FROM outbox_deliveries`) {
		key, state, _ := strings.Cut(line, " ")
		all[key] = state
	}
	return all
}

// owed returns the remaining deliveries: "event/destination", and "event/" for events without a
// route. marked reports whether the table is a queue.
func (s *stream) owed(tb testing.TB, conn *pgx.Conn, marked bool) map[string]bool {
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
			// A new destination gets the events that no destination of its route has received.
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

// TestStreamToQueue: the queue owes each destination the same events as the stream.
func TestStreamToQueue(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	tables(t, func(t *testing.T, conn *pgx.Conn) {
		t.Helper()
		s := newStream(t, conn, 100_000)
		owed, rows := s.owed(t, conn, false), deliveries(t, conn)
		stop := crowd(t, conn.Config().ConnString())
		o := outboxsql.ModeOptions{Route: func(eventType string) []string { return s.routes[eventType] }, Unordered: func(d string) bool { return d == "b" }}
		// A row locked by another session interrupts it.
		holder := testdb.Connect(t, conn.Config().ConnString())
		testdb.Exec(t, holder, `BEGIN`)
		testdb.Exec(t, holder, `SELECT FROM outbox_deliveries WHERE event_id = (SELECT min(event_id) FROM outbox_deliveries WHERE event_id > (SELECT origin_head + 60000 FROM outbox_mode)) FOR UPDATE`)
		o.LockPatience = time.Millisecond
		err := outboxsql.SetMode(t.Context(), conn, "public", outboxsql.ModeQueue, o)
		if sqlState(err) != "55P03" {
			t.Errorf("while another session has locked a row: %v", err)
		}
		if done := testdb.One[int](t, conn, `SELECT count(*) FROM outbox_events WHERE state <> 'fresh'`); done < 50_000 || done > 70_000 {
			t.Errorf("%d events are marked", done)
		}
		for _, mode := range []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} {
			if err := modelock.Hold(t.Context(), holder, "public", mode); err == nil || !strings.Contains(err.Error(), "notifyd migrate --mode queue") {
				t.Errorf("a %s's relay in between: %v", mode, err)
			}
		}
		if err := outboxsql.SetMode(t.Context(), conn, "public", outboxsql.ModeStream, o); !errors.Is(err, outboxsql.ErrModeChanging) {
			t.Errorf("the way back in between: %v", err)
		}
		testdb.Exec(t, holder, `COMMIT`)
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

// compare compares the owed deliveries with the expected ones, and rows with the earlier ones.
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
		if state == "parked" {
			state = "retry" // a queue keeps no order
		}
		if rows[key] != state {
			t.Errorf("the delivery %s is %q, was %q", key, rows[key], state)
		}
	}
	for _, line := range testdb.List[string](t, conn, `SELECT format('%s/%s %s %s', d.event_id, d.destination, d.state, d.ordering_key) FROM outbox_deliveries AS d JOIN outbox_events AS e ON e.id = d.event_id
		WHERE d.last_error IS NULL AND d.state <> 'retry' LIMIT 5`) {
		t.Errorf("a delivery that was made is %s", line)
	}
	if n := testdb.One[int](t, conn, `SELECT count(*) FROM outbox_events AS e WHERE (state = 'done') <> (processed_at IS NOT NULL)
		AND id > (SELECT min(id) FROM outbox_events WHERE processed_at IS NOT NULL) OR state = 'deferred' AND NOT EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.event_id = e.id AND d.state <> 'dead')`); n > 0 {
		t.Errorf("%d events are not marked as a queue marks them", n)
	}
}

// queueAsNew compares the index with that of a new table.
func queueAsNew(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	const index = `SELECT replace(pg_get_indexdef(indexrelid), ' ON ONLY ', ' ON ') || ' ' || indisvalid FROM pg_index WHERE indexrelid = to_regclass('outbox_events_fresh')`
	if got, want := testdb.One[string](t, conn, index), "CREATE INDEX outbox_events_fresh ON public.outbox_events USING btree (id) WHERE (state = 'fresh'::text) true"; got != want {
		t.Errorf("index %s", got)
	}
	if n := testdb.One[int](t, conn, `SELECT (SELECT count(*) FROM outbox_positions) + (SELECT count(*) FROM outbox_routes)`); n > 0 {
		t.Errorf("%d positions and routes are left", n)
	}
	if n := testdb.One[int](t, conn, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox_events'::regclass
		AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = inhrelid AND indisvalid AND pg_get_expr(indpred, indrelid) LIKE '%fresh%')`); n > 0 {
		t.Errorf("%d partitions have no index of fresh events", n)
	}
}

// TestStreamToQueueFormerRoutes: an event that its destination has yet to read by a route that has ended, or that is not
// configured any more, waits for that destination. The router has passed it.
func TestStreamToQueueFormerRoutes(t *testing.T) {
	t.Parallel()
	tables(t, func(t *testing.T, conn *pgx.Conn) {
		t.Helper()
		setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
		at := testdb.One[int64](t, conn, `WITH w AS (INSERT INTO outbox_events (event_type, payload)
			SELECT (ARRAY['ended.a', 'ended.b', 'gone', 'kept'])[1 + i % 4], '1' FROM generate_series(0, 23) AS i RETURNING id) SELECT min(id) - 1 FROM w`)
		testdb.Exec(t, conn, `INSERT INTO outbox_positions (destination, head, open) VALUES ('x', $1::bigint, '{}'), ('y', $1::bigint + 24, '{}'),
			('', $1::bigint + 16, int8multirange(int8range($1::bigint + 3, $1::bigint + 4)))`, at)
		testdb.Exec(t, conn, `INSERT INTO outbox_routes (destination, since, patterns, others, head, until_head, until_open, handed) VALUES
			('x', 1, '{ended.*,gone,kept}', '{ended.b}', 0, $1::bigint + 8, int8multirange(int8range($1::bigint + 5, $1::bigint + 6)), true),
			('x', 2, '{gone,kept}', '{ended.b}', $1::bigint, NULL, '{}', true), ('y', 1, '{ended.b}', '{}', 0, NULL, '{}', true)`, at)
		setMode(t, conn, outboxsql.ModeQueue, outboxsql.ModeOptions{Route: func(eventType string) []string {
			return map[string][]string{"kept": {"x"}, "ended.b": {"y"}}[eventType]
		}})
		// ended.a: 1 and 5, and 5 is not the ended route's. gone: 3, 7, 11 and so on, of which the router has seen those up to 16 but 3.
		got := testdb.List[string](t, conn, `SELECT format('%s of %s', event_id - $1::bigint, destination) FROM outbox_deliveries ORDER BY event_id`, at)
		if want := []string{"1 of x", "3 of x", "7 of x", "11 of x", "15 of x"}; !slices.Equal(got, want) {
			t.Errorf("%v wait, want %v", got, want)
		}
		fresh := testdb.List[int64](t, conn, `SELECT id - $1::bigint FROM outbox_events WHERE state = 'fresh' ORDER BY id`, at)
		if want := []int64{4, 8, 12, 16, 17, 19, 20, 21, 23, 24}; !slices.Equal(fresh, want) {
			t.Errorf("%v are fresh, want %v", fresh, want)
		}
	})
}

// TestStreamToQueueWithoutRoutes: if all destinations have received the same events, no routes are
// needed; otherwise nothing is changed.
func TestStreamToQueueWithoutRoutes(t *testing.T) {
	t.Parallel()
	tables(t, func(t *testing.T, conn *pgx.Conn) {
		t.Helper()
		testdb.Exec(t, conn, `INSERT INTO outbox_events (event_type, payload, state) SELECT 'a', '1', CASE i WHEN 1 THEN 'done' ELSE 'fresh' END FROM generate_series(1, 100) AS i`)
		setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
		at := testdb.One[int64](t, conn, `SELECT origin_head - 1 FROM outbox_mode`)
		testdb.Exec(t, conn, `DELETE FROM outbox_events WHERE id - $1 BETWEEN 41 AND 50`, at)
		position := func(name string, head int64, low, high int64) {
			testdb.Exec(t, conn, `INSERT INTO outbox_positions (destination, head, open) VALUES ($1, $2::bigint + $3, int8multirange(int8range($2::bigint + $4, $2::bigint + $5)))`, name, at, head, low, high)
		}
		// Positions that differ only by ids without events.
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
		testdb.Exec(t, conn, `DELETE FROM outbox_positions WHERE destination = 'c'`)
		setMode(t, conn, outboxsql.ModeQueue, outboxsql.ModeOptions{})
		want := []int64{at + 20, at + 21}
		for id := at + 51; id <= at+100; id++ {
			want = append(want, id)
		}
		same(t, "fresh", testdb.List[int64](t, conn, freshIDs), want)
		queueAsNew(t, conn)
	})
}

// TestStreamToQueueUnread: a stream that no relay has read waits as it did in the queue.
func TestStreamToQueueUnread(t *testing.T) {
	t.Parallel()
	tables(t, func(t *testing.T, conn *pgx.Conn) {
		t.Helper()
		fill(t, conn, 2000)
		fresh, rows := testdb.List[int64](t, conn, freshIDs), testdb.List[string](t, conn, keyedRows)
		for range 2 {
			setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
			setMode(t, conn, outboxsql.ModeQueue, outboxsql.ModeOptions{Route: func(string) []string { return []string{"d0", "d1"} }})
		}
		same(t, "fresh", testdb.List[int64](t, conn, freshIDs), fresh)
		if got := testdb.List[string](t, conn, storedRows); !slices.Equal(got, rows) {
			t.Error("stored deliveries have changed")
		}
		queueAsNew(t, conn)
	})
}

// TestQueueToStreamKeys: a delivery to retry has the key that relays make of its aggregate.
func TestQueueToStreamKeys(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	var want []string
	for _, e := range [][2]string{
		{"order", "7"},
		{"", "7"},
		{"order", ""},
		{"a/b", "c"},
		{"order", strings.Repeat("x", 194)},
		{"order", strings.Repeat("x", 195)},
		{"o", strings.Repeat("ä", 150)},
		{"or", strings.Repeat("ä", 150)},
		{"o", strings.Repeat("漢", 90)},
		{"or", strings.Repeat("漢", 90)},
		{"ord", strings.Repeat("漢", 90)},
		{"o", strings.Repeat("😀", 60)},
		{"or", strings.Repeat("😀", 60)},
		{"ord", strings.Repeat("😀", 60)},
		{"orde", strings.Repeat("😀", 60)},
		{strings.Repeat("t", 1000), "1"},
	} {
		id := testdb.One[int64](t, conn, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) VALUES ('a', nullif($1, ''), nullif($2, ''), '1') RETURNING id`, e[0], e[1])
		want = append(want, fmt.Sprint(id, " ", keyOf(e[0], e[1])))
	}
	testdb.Exec(t, conn, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state) SELECT id, d, 'a', 'retry' FROM outbox_events, unnest('{x,y}'::text[]) AS d`)
	testdb.Exec(t, conn, `UPDATE outbox_events SET state = 'deferred'`)
	setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{Unordered: func(name string) bool { return name == "y" }})
	got := testdb.List[string](t, conn, `SELECT event_id || ' ' || coalesce(ordering_key, '') FROM outbox_deliveries WHERE destination = 'x' ORDER BY event_id`)
	if n := testdb.One[int](t, conn, `SELECT count(*) FROM outbox_deliveries WHERE destination = 'y' AND ordering_key IS NOT NULL`); n > 0 {
		t.Errorf("%d deliveries for a destination without order have a key", n)
	}
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
