package relaytest

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

// routing is a stream whose routes change.
type routing struct {
	t    *testing.T
	pool *pgxpool.Pool

	mu     sync.Mutex
	got    map[string][]int64          // ids by destination, as they came
	last   map[string]map[string]int64 // the last id by destination, and by type and aggregate
	closed map[string]chan struct{}    // destinations that take nothing until theirs is closed

	startFrom map[string]string // by destination
	shards    int               // of each destination; 0: 1
	logs      io.Writer         // nil: the log of the test
}

func newRouting(t *testing.T) *routing {
	t.Helper()
	return newRoutingIn(t, streamPool(t))
}

// newRoutingIn is as newRouting, in a database.
func newRoutingIn(t *testing.T, pool *pgxpool.Pool) *routing {
	t.Helper()
	return &routing{
		t: t, pool: pool, got: make(map[string][]int64), last: make(map[string]map[string]int64), closed: make(map[string]chan struct{}),
	}
}

// shut makes a destination refuse everything until the returned function is called.
func (r *routing) shut(destination string) (open func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := make(chan struct{})
	r.closed[destination] = c
	return func() { close(c) }
}

// deliver records its events. All events of a type and an aggregate were written in the order of ids. Types have no order
// between them if one had no route.
func (r *routing) deliver(ctx context.Context, e *delivery.Event) error {
	r.mu.Lock()
	gate := r.closed[e.Destination]
	r.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last[e.Destination] == nil {
		r.last[e.Destination] = make(map[string]int64)
	}
	if line := e.Type + e.AggregateID; r.last[e.Destination][line] >= e.ID {
		r.t.Errorf("%s got %s %d of %s after %d", e.Destination, e.Type, e.ID, e.AggregateID, r.last[e.Destination][line])
	} else {
		r.last[e.Destination][line] = e.ID
	}
	r.got[e.Destination] = append(r.got[e.Destination], e.ID)
	return nil
}

// start runs a relay until the returned function is called.
func (r *routing) start(all map[string][]string) (stop func()) {
	r.t.Helper()
	relay, err := notifyd.New(r.pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(cmp.Or(r.logs, r.t.Output()), nil)), PollInterval: 50 * time.Millisecond, ShutdownTimeout: 100 * time.Millisecond, Batch: 40})
	if err != nil {
		r.t.Fatal(err)
	}
	names := slices.Compact(slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Values(all))...))))
	for _, name := range names {
		if err := relay.Add(notifyd.Destination{Name: name, Handler: delivery.HandlerFunc(r.deliver), Lane: delivery.Lane{StartFrom: r.startFrom[name], Shards: r.shards}}); err != nil {
			r.t.Fatal(err)
		}
	}
	for pattern, to := range all {
		if err := relay.Route(pattern, to...); err != nil {
			r.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	over := make(chan error, 1)
	go func() { over <- relay.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-over; err != nil {
				r.t.Log(err) // the deliveries of a closed destination are released, and the relay logs that
			}
		})
	}
	r.t.Cleanup(stop)
	return stop
}

// write writes n events of each type, in turns, and returns their ids by type.
func (r *routing) write(n int, types ...string) map[string][]int64 {
	r.t.Helper()
	ids := make(map[string][]int64)
	for range n / 50 {
		rows, err := r.pool.Query(r.t.Context(), `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
			SELECT t, 'a', (g % 7)::text, '{}' FROM generate_series(1, 50) AS g, unnest($1::text[]) WITH ORDINALITY AS w(t, n) ORDER BY g, n
			RETURNING id, event_type`, types)
		if err != nil {
			r.t.Fatal(err)
		}
		for rows.Next() {
			var id int64
			var name string
			if err := rows.Scan(&id, &name); err != nil {
				r.t.Fatal(err)
			}
			ids[name] = append(ids[name], id)
		}
		if err := rows.Err(); err != nil {
			r.t.Fatal(err)
		}
	}
	return ids
}

// until waits until a query returns true.
func (r *routing) until(what, query string, args ...any) {
	r.t.Helper()
	for end := time.Now().Add(settleWithin); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		var is bool
		if err := r.pool.QueryRow(r.t.Context(), query, args...).Scan(&is); err != nil {
			r.t.Fatal(err)
		}
		if is {
			return
		}
	}
	r.t.Fatalf("not so: %s\n%s", what, r.state())
}

const everythingRead = `SELECT count(*) > 0 AND bool_and(head >= (SELECT coalesce(max(id), 0) FROM outbox_events) AND open = '{}') FROM outbox_positions WHERE destination = ANY($1)`

// has waits until a destination has received that many events, and checks that they are these, once
// each.
func (r *routing) has(destination string, want ...[]int64) {
	r.t.Helper()
	all := slices.Sorted(slices.Values(slices.Concat(want...)))
	for end := time.Now().Add(settleWithin); time.Now().Before(end) && r.count(destination) < len(all); {
		<-time.After(10 * time.Millisecond)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	got := slices.Sorted(slices.Values(r.got[destination]))
	if slices.Equal(got, all) {
		return
	}
	missing := slices.DeleteFunc(slices.Clone(all), func(id int64) bool { return slices.Contains(got, id) })
	other := slices.DeleteFunc(slices.Clone(got), func(id int64) bool { return slices.Contains(all, id) })
	r.t.Fatalf("%s has %d of %d: missing %d: %v, not its own %d: %v, twice %d\n%s", destination, len(got), len(all), len(missing), missing[:min(20, len(missing))],
		len(other), other[:min(20, len(other))], len(got)-len(slices.Compact(slices.Clone(got))), r.state())
}

func (r *routing) count(destination string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.got[destination])
}

func (r *routing) state() (text string) {
	_ = r.pool.QueryRow(r.t.Context(), `SELECT concat_ws(E'\n', (SELECT string_agg(p::text, E'\n') FROM outbox_positions AS p), (SELECT string_agg(s::text, E'\n') FROM outbox_routes AS s),
		(SELECT string_agg(format('%s %s %s: %s', destination, event_type, state, n), E'\n') FROM (SELECT destination, event_type, state, count(*) AS n FROM outbox_deliveries GROUP BY 1, 2, 3) AS d))`).Scan(&text)
	return text
}

// hold keeps the shard of a destination from all relays, while it is free.
func (r *routing) hold(destination string) (let func()) {
	r.t.Helper()
	testdb.Exec(r.t, r.pool, `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
	testdb.Exec(r.t, r.pool, `CREATE TRIGGER keep BEFORE UPDATE ON outbox_positions FOR EACH ROW
		WHEN (OLD.destination = '`+destination+`' AND NEW.owner IS NOT NULL AND OLD.owner IS NULL) EXECUTE FUNCTION keep()`)
	let = sync.OnceFunc(func() { _, _ = r.pool.Exec(context.Background(), `DROP FUNCTION IF EXISTS keep() CASCADE`) })
	r.t.Cleanup(let)
	return let
}

// TestStreamRouteTakenAway: events that were routed to a destination while the route stood reach
// it, and later ones are kept until there is a route again.
func TestStreamRouteTakenAway(t *testing.T) {
	t.Parallel()
	for _, lags := range []string{"destination", "router"} {
		t.Run(lags+" lags", func(t *testing.T) {
			t.Parallel()
			r := newRouting(t)
			both := map[string][]string{"kept": {"x"}, "gone.*": {"x"}}
			stop := r.start(both)
			r.has("x", r.write(50, "kept")["kept"])
			r.until("all is read", everythingRead, []string{"", "x"})
			stop()
			was := r.got["x"]
			open, let := func() {}, func() {}
			if lags == "router" {
				let = r.hold("")
			} else {
				open = r.shut("x")
			}
			stop = r.start(both)
			first := r.write(1000, "kept", "gone.a")
			if lags == "router" {
				r.until("the destination has read", everythingRead, []string{"x"})
			} else {
				r.until("the router has read", everythingRead, []string{""})
			}
			stop()
			// The one that lags still has to read those, by new routes.
			stop = r.start(map[string][]string{"kept": {"x"}})
			r.until("the routes have ended", `SELECT count(*) = 1 FROM outbox_routes WHERE until_head IS NOT NULL`)
			second := r.write(500, "kept", "gone.a")
			let()
			open()
			r.has("x", was, first["kept"], first["gone.a"], second["kept"])
			r.until("the rest waits for a route", `SELECT coalesce(array_agg(event_id ORDER BY event_id) = $1, false) FROM outbox_deliveries WHERE state = 'unrouted'`, second["gone.a"])
			stop()
			stop = r.start(both)
			third := r.write(100, "kept", "gone.a")
			r.has("x", was, first["kept"], first["gone.a"], second["kept"], second["gone.a"], third["kept"], third["gone.a"])
			r.until("nothing is left", `SELECT count(*) = 0 FROM outbox_deliveries`)
			stop()
		})
	}
}

// TestStreamRouteMoves: a type goes to another destination by a more specific pattern. The first
// one gets all events that were its own, and neither misses any.
func TestStreamRouteMoves(t *testing.T) {
	t.Parallel()
	r := newRouting(t)
	stop := r.start(map[string][]string{"*": {"x"}, "other": {"y"}})
	start := r.write(50, "a", "other")
	r.has("x", start["a"])
	r.has("y", start["other"])
	r.until("all is read", everythingRead, []string{"", "x", "y"})
	stop()
	open, let := r.shut("x"), r.hold("")
	stop = r.start(map[string][]string{"*": {"x"}, "other": {"y"}})
	first := r.write(500, "a", "b", "other")
	r.has("y", start["other"], first["other"])
	r.until("y has passed them", everythingRead, []string{"y"})
	stop()
	// The router has read nothing, x has not and y has: now all of a are y's.
	stop = r.start(map[string][]string{"*": {"x"}, "a": {"y"}, "other": {"y"}})
	r.until("the routes have ended", `SELECT count(*) = 2 FROM outbox_routes WHERE until_head IS NOT NULL`)
	second := r.write(500, "a", "b", "other")
	let()
	open()
	r.until("all is read", everythingRead, []string{"", "x", "y"})
	r.until("nothing is left", `SELECT count(*) = 0 FROM outbox_deliveries`)
	stop()
	seen := make(map[int64]int)
	for _, name := range []string{"x", "y"} {
		for _, id := range r.got[name] {
			seen[id]++
		}
	}
	for _, ids := range []map[string][]int64{start, first, second} {
		for name, some := range ids {
			for _, id := range some {
				if seen[id] != 1 {
					t.Errorf("%d of %s came %d times", id, name, seen[id])
				}
			}
		}
	}
	r.has("x", start["a"], first["b"], second["b"], slices.DeleteFunc(slices.Clone(first["a"]), func(id int64) bool { return !slices.Contains(r.got["x"], id) }))
}

// TestStreamRouteOfMany: a route is added for two destinations, one behind the other, and for an unrouted scanner that is
// behind both.
func TestStreamRouteOfMany(t *testing.T) {
	t.Parallel()
	r := newRouting(t)
	old := map[string][]string{"one": {"x", "y"}}
	stop := r.start(old)
	start := r.write(50, "one", "late")
	r.has("x", start["one"])
	r.has("y", start["one"])
	r.until("all is read", everythingRead, []string{"", "x", "y"})
	stop()
	open, let := r.shut("x"), r.hold("")
	stop = r.start(old)
	first := r.write(1000, "one", "late")
	r.has("y", start["one"], first["one"])
	r.until("y has passed them", everythingRead, []string{"y"})
	stop()
	stop = r.start(map[string][]string{"one": {"x", "y"}, "late": {"x", "y"}})
	second := r.write(500, "one", "late")
	let()
	open()
	for _, name := range []string{"x", "y"} {
		r.has(name, start["one"], start["late"], first["one"], first["late"], second["one"], second["late"])
	}
	r.until("nothing is left", `SELECT count(*) = 0 FROM outbox_deliveries`)
	stop()
}

// TestStreamRouteAfterRollback: a new destination begins behind ids that were rolled back, so the unrouted scanner reads no event
// there. It is handed the events that had no route all the same.
func TestStreamRouteAfterRollback(t *testing.T) {
	t.Parallel()
	r := newRouting(t)
	stop := r.start(map[string][]string{"one": {"x"}})
	first := r.write(50, "one", "late")
	r.has("x", first["one"])
	r.until("the rest waits for a route", `SELECT count(*) = 50 FROM outbox_deliveries WHERE state = 'unrouted'`)
	stop()
	tx := testdb.Begin(t, r.pool, pgx.TxOptions{})
	testdb.Exec(t, tx, `INSERT INTO outbox_events (event_type, payload) SELECT 'one', '1' FROM generate_series(1, 10)`)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop = r.start(map[string][]string{"one": {"x"}, "late": {"y"}})
	r.has("y", first["late"])
	r.until("nothing is left", `SELECT count(*) = 0 FROM outbox_deliveries`)
	stop()
}

// TestStreamRoutesSideBySide: a relay with new routes works next to one with old ones. Its
// destinations get the new types while the others do not yet, and in the end all get all.
func TestStreamRoutesSideBySide(t *testing.T) {
	t.Parallel()
	r := newRouting(t)
	names := []string{"u", "v", "w", "x", "y"}
	stop := r.start(map[string][]string{"one": names})
	start := r.write(100, "one", "late")
	for _, name := range names {
		r.has(name, start["one"])
	}
	r.until("all is read", everythingRead, append(names, ""))
	last := r.start(map[string][]string{"one": names, "late": names})
	var ones, lates []int64
	ones, lates = append(ones, start["one"]...), append(lates, start["late"]...)
	write := func() {
		more := r.write(50, "one", "late")
		ones, lates = append(ones, more["one"]...), append(lates, more["late"]...)
	}
	write()
	// Some already belong to the new relay: they do not wait for the others.
	r.until("a destination has new routes", `SELECT count(*) > 0 FROM outbox_routes WHERE since > 0 AND 'late' = ANY(patterns) AND handed`)
	rows, err := r.pool.Query(t.Context(), `SELECT destination FROM outbox_routes WHERE since > 0 AND 'late' = ANY(patterns)`)
	if err != nil {
		t.Fatal(err)
	}
	var name string
	var renewed []string
	for rows.Next() {
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		renewed = append(renewed, name)
	}
	if rows.Err() != nil || len(renewed) == len(names) {
		t.Fatal(rows.Err(), renewed)
	}
	write()
	for _, name := range renewed {
		r.has(name, ones, lates)
	}
	write()
	stop()
	write()
	for _, name := range names {
		r.has(name, ones, lates)
	}
	r.until("nothing is left", `SELECT count(*) = 0 FROM outbox_deliveries`)
	r.until("nothing is expected", `SELECT count(*) = 0 FROM outbox_routes WHERE since = 0`)
	last()
}
