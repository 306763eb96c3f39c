package store

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

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/limit"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func (d *db) backlog(o BacklogOptions) observe.Backlog {
	d.Helper()
	b, err := ReadBacklog(d.Context(), d.conn, o)
	if err != nil {
		d.Fatal(err)
	}
	return b
}

// bothRoutes sends every type to mail, and orders to the queue as well.
func bothRoutes(eventType string) []string {
	if strings.HasPrefix(eventType, "order.") {
		return []string{"mail", "queue"}
	}
	return []string{"mail"}
}

func TestBacklogOfNothing(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	b := d.backlog(BacklogOptions{Route: bothRoutes})
	if b.At.IsZero() || b.Oldest != nil || len(b.Destinations)+len(b.Types)+len(b.Unrouted) != 0 || b.Fresh != (observe.Count{}) || b.Delayed != (observe.Count{}) {
		t.Errorf("%+v", b)
	}
}

// TestBacklog has a row of every kind.
func TestBacklog(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	d.exec(`INSERT INTO outbox_events (id, event_type, payload, created_at, available_at, state) VALUES
		(1, 'order.placed', '1', now() - interval '9 h', NULL, 'done'),
		(2, 'order.placed', '1', now() - interval '8 h', NULL, 'deferred'),
		(3, 'order.placed', '1', now() - interval '7 h', NULL, 'deferred'),
		(4, 'order.placed', '1', now() - interval '6 h', NULL, 'deferred'),
		(5, 'order.placed', '1', now() - interval '5 h', NULL, 'fresh'),
		(6, 'order.placed', '1', now() - interval '4 h', 'infinity', 'fresh'),
		(7, 'user.gone', '1', now() - interval '3 h', now() - interval '1 h', 'fresh'),
		(8, 'user.late', '1', '-infinity', now() + interval '1 h', 'fresh')`)
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, available_at, updated_at, error_class, last_error, ordering_key) VALUES
		(2, 'queue', 'order.placed', 'retry', 3, now() + interval '1 h', now() - interval '2 min', 'event', 'order 2: 500', NULL),
		(3, 'queue', 'order.placed', 'retry', 1, now() + interval '30 min', now() - interval '1 min', 'event', 'order 3: 500', 'a'),
		(1, 'old', 'order.placed', 'dead', 5, now(), now() - interval '3 h', 'event', 'mailbox 7 is full', NULL),
		(2, 'old', 'order.placed', 'dead', 5, now(), now() - interval '2 h', 'event', 'mailbox 9 is full', NULL),
		(3, 'old', 'order.placed', 'dead', 5, now(), now() - interval '1 h', 'event', 'no such user', NULL)`)
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, available_at, ordering_key) VALUES
		(4, 'queue', 'order.placed', 'parked', now(), 'a'), (4, '', 'order.placed', 'retry', 'infinity', NULL),
		(2, '', 'lost', 'unrouted', now(), NULL), (1, '', 'lost', 'unrouted', now(), NULL)`)
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, lease_owner, lease_token, lease_until) VALUES
		(4, 'mail', 'order.placed', 'running', 1, 1, now())`)
	b := d.backlog(BacklogOptions{Route: bothRoutes})

	var text strings.Builder
	for _, ty := range b.Types {
		fmt.Fprintf(&text, "type %s %v oldest %s\n", ty.EventType, ty.Count, hours(ty.Oldest))
	}
	fmt.Fprintf(&text, "fresh %v delayed %v oldest %s\n", b.Fresh, b.Delayed, hours(b.Oldest))
	for _, u := range b.Unrouted {
		fmt.Fprintf(&text, "unrouted %s %v\n", u.EventType, u.Count)
	}
	for _, x := range b.Destinations {
		fmt.Fprintf(&text, "%s: fresh %v retry %v running %v parked %v dead %v oldest %s", x.Name, x.Fresh, x.Retry, x.Running, x.Parked, x.Dead, hours(x.Oldest))
		if x.NextDue != nil {
			fmt.Fprintf(&text, " due %v", x.NextDue.Sub(b.At).Round(time.Minute))
		}
		if e := x.LastError; e != nil {
			fmt.Fprintf(&text, " error %d %s %d %s %s", e.EventID, e.EventType, e.Attempts, e.Class, e.Text)
		}
		for _, g := range x.DeadLetters {
			fmt.Fprintf(&text, " dead %v %s %q %d", g.Count, g.Class, g.Error, g.EventID)
		}
		text.WriteString("\n")
	}
	const want = `type order.placed 2 oldest 5/5h0m0s
type user.gone 1 oldest 7/1h0m0s
type user.late 1 oldest none
fresh 4 delayed 1 oldest 2/8h0m0s
unrouted lost 2
mail: fresh 4 retry 0 running 1 parked 0 dead 0 oldest 4/6h0m0s
old: fresh 0 retry 0 running 0 parked 0 dead 3 oldest none dead 2 event "mailbox 9 is full" 2 dead 1 event "no such user" 3
queue: fresh 2 retry 2 running 0 parked 1 dead 0 oldest 2/8h0m0s due 30m0s error 3 order.placed 1 event order 3: 500
`
	if text.String() != want {
		t.Errorf("got\n%swant\n%s", text.String(), want)
	}
	queue := b.Destination("queue")
	if w := queue.Waiting(); w.String() != "5" {
		t.Errorf("for the queue wait %v", w)
	}
	if got := b.Destination("nobody"); got.Name != "nobody" || got.Waiting().N != 0 {
		t.Errorf("%+v", got)
	}
	if _, err := json.Marshal(b); err != nil {
		t.Error(err)
	}
	unknown := d.backlog(BacklogOptions{})
	if mail := unknown.Destination("mail"); mail.Fresh.N != 0 || mail.Running.N != 1 || unknown.Fresh.N != 4 {
		t.Errorf("without routes: %+v", unknown)
	}
}

// TestBacklogLastError: in an outage the probes take one event after the other, so that the last failed event is due
// after hundreds that were only held back.
func TestBacklogLastError(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, available_at, updated_at)
		SELECT i, 'x', 'a', 'retry', now() - interval '5 min', now() - interval '5 min' FROM generate_series(2, 400) AS i`)
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, available_at, updated_at, error_class, last_error) VALUES
		(1, 'x', 'a', 'retry', now() - interval '6 min', now() - interval '6 min', 'destination', 'refused'),
		(500, 'x', 'a', 'retry', now() + interval '20 s', now() - interval '10 s', 'destination', 'timeout')`)
	b := d.backlog(BacklogOptions{})
	if e := b.Destination("x").LastError; e == nil || e.EventID != 500 || e.Text != "timeout" {
		t.Errorf("%+v", e)
	}
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, available_at, error_class, last_error) VALUES
		(501, 'x', 'a', 'retry', now() + interval '10 s', 'destination', $1), (501, 'y', 'a', 'retry', now() + interval '10 s', 'destination', $1)`, limit.Waits)
	b = d.backlog(BacklogOptions{})
	if e := b.Destination("x").LastError; e == nil || e.EventID != 500 {
		t.Errorf("what its rate limit holds back hides a failure: %+v", e)
	}
	if e := b.Destination("y").LastError; e != nil {
		t.Errorf("what its rate limit holds back has failed: %+v", e)
	}
}

func hours(w *observe.Waiting) string {
	if w == nil {
		return "none"
	}
	return fmt.Sprintf("%d/%v", w.EventID, (time.Duration(w.Age) * time.Second).Round(time.Minute))
}

// TestBacklogLimit: counting ends at the limit, and reports it.
func TestBacklogLimit(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	ids := d.insert("a", 30)
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key) SELECT i, 'x', 'a', s, 'k' || i
		FROM generate_series(1, 20) i, unnest(ARRAY['parked']) s`)
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) SELECT i, d, 'a', s
		FROM generate_series(101, 111) i, unnest(ARRAY['y', 'z', ''], ARRAY['retry', 'dead', 'unrouted']) AS u(d, s)`)
	b := d.backlog(BacklogOptions{Limit: 10, Route: func(string) []string { return []string{"w", "w2"} }})
	got := fmt.Sprint(b.Fresh, b.Unrouted[0].Count, b.Destination("w").Fresh.More && b.Destination("x").Parked.More, b.Destination("y").Retry, b.Destination("z").Dead)
	if want := "10+ 10+ true 10+ 10+"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	b = d.backlog(BacklogOptions{Limit: 11, After: ids[19]})
	got = fmt.Sprint(b.Fresh, b.Unrouted[0].Count, b.Destination("y").Retry, b.Destination("z").Dead)
	if want := "10 11 11 11"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestBacklogNotMigrated(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	_, err := ReadBacklog(t.Context(), d.conn, BacklogOptions{Schema: "nowhere"})
	if !errors.Is(err, outboxsql.ErrNotMigrated) || !strings.Contains(err.Error(), "notifyd migrate") {
		t.Errorf("%v", err)
	}
	if got := one[string](d, `SHOW enable_seqscan`); got != "on" {
		t.Errorf("the session is left with enable_seqscan = %s", got)
	}
}

func TestWatchBacklog(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	d.insert("a", 3)
	b, err := NewWatch(d.Connector).Backlog(t.Context(), BacklogOptions{Schema: "another"})
	if err != nil || b.Fresh.N != 3 {
		t.Errorf("%+v, %v", b, err)
	}
}

// TestBacklogPlans reads a table of 300,000 events, with 10,000 waiting ones, and a hundred thousand deliveries. Each
// index scan has a condition, or ends at a limit: no query reads a whole table or index.
func TestBacklogPlans(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	if _, err := d.conn.Exec(t.Context(), `LOAD 'auto_explain'`); err != nil {
		testenv.Need(t, "auto_explain", err)
	}
	d.exec(`ALTER TABLE outbox_events SET (autovacuum_enabled = off)`)
	d.exec(`ALTER TABLE outbox_deliveries SET (autovacuum_enabled = off)`)
	d.exec(`INSERT INTO outbox_events (event_type, payload, state, processed_at)
		SELECT 't' || i % 7, '1', CASE WHEN i % 30 = 0 THEN 'fresh' ELSE 'done' END, now() FROM generate_series(1, 300000) i`)
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key, last_error, lease_owner, lease_token, lease_until)
		SELECT i, 'd' || i % 5, 't', s, CASE s WHEN 'parked' THEN 'k' || i END, 'error ' || i,
			CASE s WHEN 'running' THEN 1 END, CASE s WHEN 'running' THEN 1 END, CASE s WHEN 'running' THEN now() END
		FROM (SELECT i, (ARRAY['retry', 'dead', 'parked', 'unrouted', 'running'])[1 + i % 4 + i % 997 / 996] AS s FROM generate_series(1, 100000) i) AS x`)
	for _, statistics := range []string{"never analysed", "analysed"} {
		if statistics == "analysed" {
			d.exec(`ANALYZE outbox_events, outbox_deliveries`)
		}
		plans := append(d.explain(pgx.ConnectConfig, d.readsBacklog), d.explain(d.connectPinned, d.countsWaiting)...)
		if len(plans) < 16 {
			t.Errorf("%s: %d plans were seen", statistics, len(plans))
		}
		for _, plan := range plans {
			if scans := unboundedScans(plan); len(scans) > 0 {
				t.Errorf("%s: %v in\n%s", statistics, scans, plan)
			}
		}
	}
}

// connectPinned connects as a relay does.
func (d *db) connectPinned(ctx context.Context, cfg *pgx.ConnConfig) (*pgx.Conn, error) {
	return (&Connector{Config: cfg, Schema: d.Schema}).Connect(ctx, "explain")
}

// explain returns the plans of the queries, as they were run, in JSON.
func (d *db) explain(connect func(context.Context, *pgx.ConnConfig) (*pgx.Conn, error), questions func(*pgx.Conn)) []string {
	d.Helper()
	var mu sync.Mutex
	var plans []string
	cfg := d.Config.Copy()
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		mu.Lock()
		defer mu.Unlock()
		if _, plan, ok := strings.Cut(n.Message, "plan:\n"); ok {
			plans = append(plans, plan)
		}
	}
	conn, err := connect(d.Context(), cfg)
	if err != nil {
		d.Fatal(err)
	}
	defer Close(context.WithoutCancel(d.Context()), conn)
	_, err = conn.Exec(d.Context(), `LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_analyze = on;
		SET auto_explain.log_timing = off; SET auto_explain.log_format = json; SET client_min_messages = log`, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		d.Fatal(err)
	}
	questions(conn)
	mu.Lock()
	defer mu.Unlock()
	return slices.Clone(plans)
}

func (d *db) readsBacklog(conn *pgx.Conn) {
	d.Helper()
	b, err := ReadBacklog(d.Context(), conn, BacklogOptions{Route: bothRoutes})
	if err != nil {
		d.Fatal(err)
	}
	if b.Fresh.String() != "10000" || len(b.Destinations) != 6 || b.Unrouted[0].String() != "10000+" || len(b.Destination("d0").DeadLetters) != 1 {
		d.Errorf("what waits: %+v", b)
	}
}

func (d *db) countsWaiting(conn *pgx.Conn) {
	d.Helper()
	all, err := CountWaiting(d.Context(), conn, DefaultBacklogLimit)
	if err != nil {
		d.Fatal(err)
	}
	sums, more := make(map[string]int), make(map[string]bool)
	for _, w := range all {
		sums[w.State] += w.Count
		more[w.State] = more[w.State] || w.More
	}
	// Each of five destinations has 5,000 dead ones, and all of the parked ones.
	if sums["fresh"] != DefaultBacklogLimit || !more["fresh"] || sums["unrouted"] != DefaultBacklogLimit || !more["unrouted"] ||
		sums["dead"] < 20_000 || more["dead"] || sums["parked"] < 20_000 || more["parked"] || sums["running"] == 0 || sums["retry"] < 20_000 {
		d.Errorf("what waits: %v, more: %v", sums, more)
	}
}

// unboundedScans returns the scans of our tables in a plan that read all rows: sequential and
// bitmap scans, index scans without a condition and without a limit right above, and all scans that
// read more than the limits allow. Tables with one row, as a sequence has, or one per destination, may be read whole.
func unboundedScans(plan string) (all []string) {
	var root map[string]any
	if err := json.Unmarshal([]byte(plan), &root); err != nil {
		return []string{"no plan: " + err.Error()}
	}
	var walk func(node map[string]any, limited bool)
	walk = func(node map[string]any, limited bool) {
		kind, _ := node["Node Type"].(string)
		table, _ := node["Relation Name"].(string)
		_, condition := node["Index Cond"]
		rows, _ := node["Actual Rows"].(float64)
		removed, _ := node["Rows Removed by Filter"].(float64)
		index, _ := node["Index Name"].(string)
		small := table == "outbox_positions" || table == "outbox_mode" || table == "outbox_members" || strings.HasSuffix(table, "_seq") || index == "outbox_replays_running" // one per destination at most
		if strings.HasPrefix(table, "outbox_") && !small && (!strings.HasPrefix(kind, "Index") || !condition && !limited || rows+removed > DefaultBacklogLimit+1) {
			all = append(all, fmt.Sprintf("%s on %s using %v, %v rows", kind, table, node["Index Name"], rows))
		}
		children, _ := node["Plans"].([]any)
		for _, child := range children {
			below, _ := child.(map[string]any)
			walk(below, kind == "Limit" || kind == "LockRows" && limited)
		}
	}
	top, ok := root["Plan"].(map[string]any)
	if !ok {
		return []string{"no plan"}
	}
	walk(top, false)
	return all
}
