//go:build testall

package bench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// options are for the database at url; out gets the report for people.
func options(t *testing.T, url string) (o Options, out *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out = &bytes.Buffer{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("output:\n%s", out)
		}
	})
	return Options{DatabaseURL: url, Out: out, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Relay: []string{self}}, out
}

// checkEmpty fails the test if a schema of a bench is left.
func checkEmpty(t *testing.T, url string) {
	t.Helper()
	rows, err := testdb.Connect(t, url).Query(t.Context(), `SELECT nspname FROM pg_namespace WHERE nspname LIKE 'notifyd%'`)
	if err != nil {
		t.Fatal(err)
	}
	left, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(left) > 0 {
		t.Errorf("schemas left behind: %v, %v", left, err)
	}
}

// measured runs an experiment, and checks that it loses nothing and leaves nothing behind.
func measured(t *testing.T, x Experiment) (r *Result, out *bytes.Buffer) {
	t.Helper()
	url := testenv.Database(t)
	o, out := options(t, url)
	r, err := Measure(t.Context(), o, x)
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK() {
		t.Errorf("faults %v", r.Faults)
	}
	checkEmpty(t, url)
	return r, out
}

// checkRising fails the test unless all columns have all figures, above 0 and in rising order.
func checkRising(t *testing.T, r *Result, figures ...string) {
	t.Helper()
	for _, c := range r.Columns {
		var last float64
		for _, name := range figures {
			value, ok := c.Figures[name]
			if !ok || value <= 0 || value < last {
				t.Errorf("%s, %s: %v, before it %v", c.Name, name, value, last)
			}
			last = value
		}
	}
}

// checkColumns fails the test unless the result has these columns.
func checkColumns(t *testing.T, r *Result, want string) {
	t.Helper()
	var names []string
	for _, c := range r.Columns {
		names = append(names, c.Name)
	}
	if got := strings.Join(names, "|"); got != want {
		t.Errorf("columns %s, want %s", got, want)
	}
}

func TestLatency(t *testing.T) {
	t.Parallel()
	r, out := measured(t, &Latency{Events: 60, Rate: 200, Mode: ModeBoth, HeldSnapshot: true, Foreign: ForeignHere})
	checkColumns(t, r, "queue|queue, disturbed|stream|stream, disturbed|floor")
	checkRising(t, r, "COMMIT sent -> handler, p50, ms", "COMMIT sent -> handler, p90, ms", "COMMIT sent -> handler, p99, ms", "COMMIT sent -> handler, max, ms")
	if !strings.Contains(out.String(), "floor lost=0") {
		t.Error("the floor lost events, or does not say")
	}
}

func TestDrain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		columns string
		want    Drain
	}{
		"kept":                  {"relay|SQL alone", Drain{Events: 3000, Payload: 256}},
		"deleted":               {"relay|SQL alone", Drain{Events: 3000, Payload: 2, Delete: true, Batch: 100, Workers: 2}},
		"keys":                  {"relay|SQL alone", Drain{Events: 3000, Payload: 2, Keys: 100, Foreign: ForeignHere}},
		"partitions":            {"plain table|SQL alone|5 partitions", Drain{Events: 1000, Payload: 256, Partitions: 5}},
		"destinations":          {"1 destination|SQL alone|3 destinations", Drain{Events: 1000, Payload: 256, Destinations: 3}},
		"stream":                {"relay|read alone", Drain{Events: 3000, Payload: 2, Keys: 100, Mode: ModeStream, Batch: 100, Workers: 2}},
		"stream, held snapshot": {"relay|read alone", Drain{Events: 500, Payload: 5000, HeldSnapshot: true, Foreign: ForeignElsewhere, Mode: ModeStream}},
		"stream, foreign event": {"relay|read alone", Drain{Events: 1000, Payload: 2, Keys: 10, Foreign: ForeignHere, Mode: ModeStream}},
		"stream, partitions":    {"plain table|read alone|5 partitions", Drain{Events: 1000, Payload: 256, Partitions: 5, Mode: ModeStream}},
		"stream, total":         {"relay|read alone", Drain{Events: 3000, Payload: 2, Keys: 100, Mode: ModeStream, Total: true}},
		"stream, shards":        {"1 shard|read alone|3 shards", Drain{Events: 1000, Payload: 256, Keys: 100, Shards: 3, Mode: ModeStream}},
		"stream, blocked":       {"none blocked|read alone|blocked", Drain{Events: 1000, Payload: 2, BlockedKeys: 300, Mode: ModeStream}},
		"stream, fresh blocked": {"none blocked|read alone|blocked", Drain{Events: 1000, Payload: 2, Keys: 50, BlockedKeys: 30, BlockedFresh: 200, Mode: ModeStream}},
		"both":                  {"queue|SQL alone|stream|read alone", Drain{Events: 1000, Payload: 256, Keys: 20, Mode: ModeBoth}},
		"both, urgent": {
			"queue, same priority|SQL alone|queue, urgent first|stream, same priority|read alone|stream, urgent first",
			Drain{Events: 300, Payload: 256, Urgent: 3, Mode: ModeBoth},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := measured(t, usual(test.want))
			checkColumns(t, r, test.columns)
			checkRising(t, r, eventsPerSecond)
			checkRising(t, r, "CPU of this process, us/event")
			checkRising(t, r, "peak memory, MiB")
			if r.Faults.Duplicates != 0 {
				t.Errorf("faults %v", r.Faults)
			}
		})
	}
}

// usual returns a drain with the defaults of the command.
func usual(x Drain) *Drain {
	defaults := notifyd.Config{}.WithDefaults()
	x.Batch = cmp.Or(x.Batch, defaults.Batch)
	x.Workers = cmp.Or(x.Workers, defaults.Connections)
	x.Topics = cmp.Or(x.Topics, 1)
	x.Destinations = cmp.Or(x.Destinations, 1)
	x.Shards = cmp.Or(x.Shards, 1)
	x.Mode = cmp.Or(x.Mode, ModeQueue)
	x.To = noSink
	return &x
}

// TestDrainUnblocked: any change to the stored deliveries of a blocked aggregate is an error.
func TestDrainUnblocked(t *testing.T) {
	t.Parallel()
	l := load{events: 20, payload: 2, routes: 1, keys: 4, blocked: 4, fresh: 3, mode: outboxsql.ModeStream}
	o, _ := options(t, testenv.Database(t))
	err := within(t.Context(), o, func(ctx context.Context, e *env) error {
		d := &drain{env: e, place: &place{}}
		// As the relay leaves them: all events are read, and blocked ones are parked.
		const read = `INSERT INTO $positions (destination, head) VALUES ('sink-0', $total);
			INSERT INTO $ways (destination, since, head, patterns) VALUES ('sink-0', 1, 0, '{*}')`
		const parkFresh = `INSERT INTO $deliveries (event_id, destination, event_type, state, ordering_key)
			SELECT id, 'sink-0', event_type, 'parked', aggregate_type || '/' || aggregate_id
			FROM $table WHERE id > $before AND aggregate_id LIKE 'blocked-%'`
		for i, c := range []struct {
			statement string
			left      int64
			unblocked bool
		}{
			{parkFresh, 0, false},
			{parkFresh + "; UPDATE $positions SET head = $before", 23, false},
			{parkFresh + "; UPDATE $positions SET open = '{[$total,$total]}'", 1, false},
			{parkFresh + "; UPDATE $table SET state = 'deferred' WHERE id = $total", 1, false},
			{"SELECT 1", 0, true}, // without parkFresh
			{parkFresh + "; DELETE FROM $deliveries WHERE event_id = 1", 0, true},
			{parkFresh + "; DELETE FROM $deliveries WHERE event_id = $blocked + 1", 0, true},
			{parkFresh + "; UPDATE $deliveries SET state = 'retry' WHERE event_id = $blocked + 1", 0, true},
			{parkFresh + "; UPDATE $deliveries SET attempts = 2 WHERE event_id = 1", 0, true},
			{parkFresh + "; INSERT INTO $deliveries (event_id, destination, event_type, state) VALUES ($total, 'sink-0', 'x', 'dead')", 0, true},
		} {
			schema, err := d.backlog(ctx, "case"+strconv.Itoa(i), l)
			if err != nil {
				return err
			}
			statement := strings.NewReplacer("$positions", in(schema, "outbox_positions"), "$ways", in(schema, "outbox_routes")).Replace(read + "; " + c.statement)
			if _, err := e.pool.Exec(ctx, l.fill(schema, statement)); err != nil {
				return err
			}
			left, err := d.left(ctx, schema, l)
			if left != c.left || errors.Is(err, errUnblocked) != c.unblocked || !c.unblocked && err != nil {
				t.Errorf("%s: %d left, error %v, want %d, unblocked %v", c.statement, left, err, c.left, c.unblocked)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestBacklog: the events that sqlFreshEvents holds back are those that load.holds names.
func TestBacklog(t *testing.T) {
	t.Parallel()
	l := load{events: 500, payload: 20, routes: 3, keys: 7, blocked: 10, fresh: 123}
	o, _ := options(t, testenv.Database(t))
	err := within(t.Context(), o, func(ctx context.Context, e *env) error {
		schema, err := (&drain{env: e}).backlog(ctx, "backlog", l)
		if err != nil {
			return err
		}
		rows, err := e.pool.Query(ctx, "SELECT id, coalesce(aggregate_id, ''), event_type FROM "+table(schema)+" ORDER BY id")
		if err != nil {
			return err
		}
		types := make(map[string]string) // of the aggregates
		var last, id int64
		var key, eventType string
		_, err = pgx.ForEachRow(rows, []any{&id, &key, &eventType}, func() error {
			if known := types[key]; id != last+1 || l.holds(id) != strings.HasPrefix(key, "blocked-") || known != "" && known != eventType {
				t.Errorf("event %d of %q, %s: held %v, before it %d and %s", id, key, eventType, l.holds(id), last, known)
			}
			last, types[key] = id, eventType
			return nil
		})
		if last != int64(l.total()) || len(types) != l.keys+l.blocked {
			t.Errorf("%d events of %d aggregates, want %d of %d", last, len(types), l.total(), l.keys+l.blocked)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestInsert(t *testing.T) {
	t.Parallel()
	r, _ := measured(t, &Insert{Writers: 2, Seconds: 1, Mode: ModeBoth, Serialized: true})
	checkRising(t, r, "lowest", "median", "highest")
	checkRising(t, r, "/ none")
	checkRising(t, r, "commit, p50, ms", "commit, p99, ms")
	if len(r.Columns) != 14 || r.column("stream, auto: a relay at work").Figures["commit at 50/s, p50, ms"] <= 0 {
		t.Errorf("%d columns", len(r.Columns))
	}
}

func TestSoak(t *testing.T) {
	t.Parallel()
	r, _ := measured(t, &Soak{Rate: 100, Seconds: 1, Mode: ModeBoth})
	checkColumns(t, r, "queue|stream")
	checkRising(t, r, dueToHandler+", p50, ms", dueToHandler+", p99, ms", dueToHandler+", p99.9, ms", dueToHandler+", max, ms")
	checkRising(t, r, "table, bytes/event")
	if r.Columns[1].Figures["events"] != 100 || *r.Faults != (Faults{}) {
		t.Errorf("%v, faults %v", r.Columns[1].Figures, r.Faults)
	}
}

func TestReplay(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]*Replay{
		"letters": {Letters: 300, Keys: 5, Rate: 100, Seconds: 1, Mode: ModeBoth},
		"history": {History: 1000, Letters: 1, Keys: 5, Rate: 100, Seconds: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := measured(t, x)
			live := "another destination"
			if x.History > 0 {
				live = "the same destination"
			}
			checkRising(t, r, live+", alone, p50, ms", live+", alone, p99, ms")
			// The first live event is for this one; a short replay ends before a second one.
			checkRising(t, r, "another destination, beside the replay, p50, ms", "another destination, beside the replay, p99, ms")
			if r.Faults.Duplicates != 0 {
				t.Errorf("faults %v", r.Faults)
			}
		})
	}
}

func TestTakeover(t *testing.T) {
	t.Parallel()
	r, _ := measured(t, &Takeover{Rate: 100, Seconds: 2, Mode: ModeBoth})
	checkColumns(t, r, "queue|stream")
	checkRising(t, r, "longest after the kill, ms")
}

func TestShards(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]*Shards{
		"waits": {Events: 400, Payload: 20, Keys: 200, Concurrency: 4, HandlerTime: time.Millisecond, Relays: []int{1, 3}},
		"busy":  {Events: 200, Payload: 20, Keys: 200, Concurrency: 1, HandlerTime: 100 * time.Microsecond, Relays: []int{1, 2}, Busy: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := measured(t, x)
			checkRising(t, r, eventsPerSecond)
			checkRising(t, r, "CPU of this process, us/event")
			if len(r.Columns) != 2 || r.Columns[0].Figures["ratio to 1 relay"] != 1 || *r.Faults != (Faults{}) {
				t.Errorf("%v, faults %v", r.Columns[0].Figures, r.Faults)
			}
		})
	}
}

// TestUnsettledByShard: only the events of a shard are left to it.
func TestUnsettledByShard(t *testing.T) {
	t.Parallel()
	l := load{events: 20, payload: 2, routes: 1, mode: outboxsql.ModeStream} // event 20 is of shard 0, as it has no aggregate
	o, _ := options(t, testenv.Database(t))
	err := within(t.Context(), o, func(ctx context.Context, e *env) error {
		schema, err := (&drain{env: e}).backlog(ctx, "unsettled", l)
		if err != nil {
			return err
		}
		for _, c := range []struct {
			positions string
			left      int64
		}{
			{`(0, 20, '{}'), (1, 20, '{}')`, 0},
			{`(0, 20, '{}'), (1, 19, '{}')`, 0},
			{`(0, 19, '{}'), (1, 20, '{}')`, 1},
			{`(0, 20, '{[3,6)}'), (1, 17, '{}')`, 2},
		} {
			_, err := e.pool.Exec(ctx, `DELETE FROM `+in(schema, "outbox_positions")+`; DELETE FROM `+in(schema, "outbox_routes")+`;
				INSERT INTO `+in(schema, "outbox_positions")+` (destination, shards, shard, head, open)
					SELECT 'sink-0', 2, shard, head, open::int8multirange FROM (VALUES `+c.positions+`) AS v(shard, head, open);
				INSERT INTO `+in(schema, "outbox_routes")+` (destination, since, head, patterns) VALUES ('sink-0', 1, 0, '{*}')`)
			if err != nil {
				return err
			}
			left, err := e.unsettled(ctx, schema, l.mode)
			if err != nil || left != c.left {
				t.Errorf("%s: %d left, error %v, want %d", c.positions, left, err, c.left)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestShardsWithoutEvents: with fewer aggregates than shards a relay would wait forever.
func TestShardsWithoutEvents(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	o, _ := options(t, url)
	err := within(t.Context(), o, func(ctx context.Context, e *env) error {
		ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Second, errNoShard)
		defer cancel()
		b := &shards{drain: drain{env: e}, want: &Shards{Events: 10, Payload: 20, Keys: 1, Concurrency: 1}}
		_, err := b.round(ctx, 2)
		return err
	})
	if !errors.Is(err, errNoShard) {
		t.Errorf("got error %v, want %v", err, errNoShard)
	}
	checkEmpty(t, url)
}

func TestUsedDatabase(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn := testdb.Connect(t, url)
	if _, err := outboxsql.Migrate(t.Context(), conn, "shop", outboxsql.MigrateOptions{Notify: outboxsql.NotifyAuto}); err != nil {
		t.Fatal(err)
	}
	o, _ := options(t, url)
	want := usual(Drain{Events: 10, Payload: 10})
	if _, err := Measure(t.Context(), o, want); err != nil {
		t.Errorf("tables without events: %v", err)
	}
	if _, err := conn.Exec(t.Context(), `INSERT INTO shop.outbox_events (event_type, payload) VALUES ('order', '1')`); err != nil {
		t.Fatal(err)
	}
	if _, err := Measure(t.Context(), o, want); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), `"shop"."outbox_events"`) {
		t.Errorf("got error %v, want %v with the name of the table", err, ErrInUse)
	}
	checkEmpty(t, url)
	o.Force = true
	if _, err := Measure(t.Context(), o, want); err != nil {
		t.Errorf("forced: %v", err)
	}
	var state string
	if err := conn.QueryRow(t.Context(), `SELECT state FROM shop.outbox_events`).Scan(&state); err != nil || state != "fresh" {
		t.Errorf("the event that was there is %q now (%v)", state, err)
	}
	checkEmpty(t, url)
}

// TestCancelled: after Ctrl-C the database is as it was.
func TestCancelled(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	o, out := options(t, url)
	for name, x := range map[string]Experiment{
		"latency": &Latency{Events: 1_000_000, Rate: 10},
		"soak":    &Soak{Rate: 10, Seconds: 1_000_000},
		"insert":  &Insert{Writers: 2, Seconds: 1_000_000},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := Measure(ctx, o, x)
			ended <- err
		}()
		waitForEvents(t, url)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got error %v, want %v", name, err, context.Canceled)
		}
		checkEmpty(t, url)
	}
	if strings.Contains(out.String(), "lost") {
		t.Error("a cancelled bench reports")
	}
}

// waitForEvents waits until a bench has begun to write.
func waitForEvents(t *testing.T, url string) {
	t.Helper()
	conn := testdb.Connect(t, url)
	for {
		// Written, and not only created: the size needs no name of a schema.
		var written bool
		err := conn.QueryRow(t.Context(), `SELECT coalesce(max(pg_relation_size(oid)), 0) > 0 FROM pg_class WHERE relname = 'outbox_events'`).Scan(&written)
		if written {
			return
		}
		// A table may be dropped between the list and the query; only a dead connection
		// is final.
		if err != nil && conn.IsClosed() {
			t.Fatal(err)
		}
	}
}

// TestServeWithoutOrder: the relay's process is started by a bench only.
func TestServeWithoutOrder(t *testing.T) {
	t.Parallel()
	if err := Serve(t.Context(), nil, nil, nil, ""); !errors.Is(err, ErrNoOrder) {
		t.Errorf("no order: %v", err)
	}
	if Serve(t.Context(), nil, nil, nil, "{") == nil {
		t.Error("a bad order: no error")
	}
}
