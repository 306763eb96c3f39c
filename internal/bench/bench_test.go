//go:build testall

package bench

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/testenv"
	"github.com/notifyd/notifyd/internal/testenv/testdb"
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

func TestLatency(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	o, out := options(t, url)
	r, err := Latency(t.Context(), LatencyOptions{Options: o, Events: 60, Rate: 200})
	if err != nil {
		t.Fatal(err)
	}
	if r.Lost != 0 || !r.OK() || r.P50 > r.P90 || r.P90 > r.P99 || r.P99 > r.Max || r.FloorP50 > r.FloorP99 || r.Max <= 0 {
		t.Errorf("result %+v", r)
	}
	if !strings.Contains(out.String(), "floor lost=0") {
		t.Error("the floor lost events, or does not say")
	}
	checkEmpty(t, url)
}

func TestDrain(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]DrainOptions{
		"kept":          {Events: 3000, Payload: 256},
		"deleted":       {Events: 3000, Payload: 2, Delete: true, Batch: 100, Workers: 2},
		"held snapshot": {Events: 500, Payload: 5000, HeldSnapshot: true},
		"keys":          {Events: 3000, Payload: 2, Keys: 100},
		"partitions":    {Events: 1000, Payload: 256, Partitions: 5},

		"stream":                    {Events: 3000, Payload: 256, Mode: ModeStream},
		"stream, keys":              {Events: 3000, Payload: 2, Keys: 100, Mode: ModeStream, Batch: 100, Workers: 2},
		"stream, held snapshot":     {Events: 500, Payload: 5000, HeldSnapshot: true, Foreign: ForeignElsewhere, Mode: ModeStream},
		"stream, foreign event":     {Events: 1000, Payload: 2, Keys: 10, Foreign: ForeignHere, Mode: ModeStream},
		"stream, partitions":        {Events: 1000, Payload: 256, Partitions: 5, Mode: ModeStream},
		"stream, total":             {Events: 3000, Payload: 2, Keys: 100, Mode: ModeStream, Total: true},
		"stream, destinations":      {Events: 1000, Payload: 256, Destinations: 3, Mode: ModeStream},
		"stream, shards":            {Events: 1000, Payload: 256, Keys: 100, Shards: 3, Mode: ModeStream},
		"destinations":              {Events: 1000, Payload: 256, Destinations: 3},
		"both":                      {Events: 1000, Payload: 256, Keys: 20, Mode: ModeBoth},
		"both, one after the other": {Events: 300, Payload: 256, Urgent: 3, Mode: ModeBoth},
		"foreign event":             {Events: 1000, Payload: 2, Foreign: ForeignHere},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			want.Options, _ = options(t, url)
			r, err := Drain(t.Context(), want)
			if err != nil {
				t.Fatal(err)
			}
			if (r.Stream != nil) != (want.Mode == ModeBoth) || (r.FannedPerSecond > 0) != (want.Destinations > 0) || (r.ShardedRatio > 0 && r.ShardedCPURatio > 0) != (want.Shards > 0) {
				t.Errorf("result %+v", r)
			}
			for one := &r; one != nil; one = one.Stream {
				if !r.OK() || one.Lost != 0 || one.Duplicates != 0 || one.EventsPerSecond <= 0 || one.SQLPerSecond+one.PlainPerSecond <= 0 || one.Ratio <= 0 || one.PeakRSSMiB <= 0 || one.RelayCPU <= 0 {
					t.Errorf("result %+v", *one)
				}
			}
			checkEmpty(t, url)
		})
	}
}

// TestDrainBlocked: blocked aggregates stay blocked, and others are measured in the same run.
func TestDrainBlocked(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]DrainOptions{
		"stored": {Events: 1000, Payload: 2, BlockedKeys: 300, Mode: ModeStream},
		"fresh":  {Events: 1000, Payload: 2, Keys: 50, BlockedKeys: 30, BlockedFresh: 200, Mode: ModeStream},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			var out *bytes.Buffer
			want.Options, out = options(t, url)
			r, err := Drain(t.Context(), want)
			if err != nil {
				t.Fatal(err)
			}
			if r.Lost != 0 || r.Duplicates != 0 || r.StartSeconds <= 0 || r.FlowingPerSecond < r.EventsPerSecond || r.BlockedPerSecond <= 0 || r.BlockedStartSeconds <= 0 ||
				r.BlockedFlowingPerSecond < r.BlockedPerSecond || r.BlockedRatio <= 0 || r.BlockedFlowingRatio <= 0 || r.BlockedPeakRSSMiB <= 0 {
				t.Errorf("result %+v", r)
			}
			if !strings.Contains(out.String(), "medians of 3 rounds, in turns") {
				t.Error("the report does not mention the rounds")
			}
			checkEmpty(t, url)
		})
	}
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
	url := testenv.Database(t)
	o, _ := options(t, url)
	r, err := Insert(t.Context(), InsertOptions{Options: o, Writers: 2, Seconds: 1})
	if err != nil {
		t.Fatal(err)
	}
	if r.None <= 0 || r.Auto <= 0 || r.Suppressed <= 0 || r.Always <= 0 || r.AutoRatio <= 0 || r.TriggerRatio <= 0 ||
		r.AloneRatio <= 0 || r.FrozenRatio <= 0 || r.ListenRatio <= 0 || !r.OK() {
		t.Errorf("result %+v", r)
	}
	checkEmpty(t, url)
}

func TestSoak(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	o, _ := options(t, url)
	r, err := Soak(t.Context(), SoakOptions{Options: o, Rate: 100, Seconds: 1})
	if err != nil {
		t.Fatal(err)
	}
	if r.Events != 100 || r.Lost != 0 || r.Duplicates != 0 || r.P50 <= 0 || r.P50 > r.P99 || r.P99 > r.P999 || r.P999 > r.Max || r.TableMiB <= 0 {
		t.Errorf("result %+v", r)
	}
	checkEmpty(t, url)
}

// TestBoth: with ModeBoth the result of the queue has the figures of the stream in it.
func TestBoth(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	o, out := options(t, url)
	soak, err := Soak(t.Context(), SoakOptions{Options: o, Rate: 100, Seconds: 1, Mode: ModeBoth})
	if err != nil || !soak.OK() || soak.Stream == nil || soak.Stream.Events != 100 || soak.Stream.P50 <= 0 || soak.Stream.Lost != 0 {
		t.Errorf("soak: result %+v, error %v", soak, err)
	}
	insert, err := Insert(t.Context(), InsertOptions{Options: o, Writers: 2, Seconds: 1, Mode: ModeBoth, Serialized: true})
	if err == nil && (insert.Serialized <= 0 || insert.SerializedRatio <= 0 || insert.Stream.Serialized <= 0 || insert.NoneLatency.P50 <= 0 || insert.LineLatency.P99 < insert.LineLatency.P50) {
		t.Errorf("insert, serialized writers: %+v", insert)
	}
	if err != nil || insert.StreamRatio <= 0 || insert.Stream == nil || insert.Stream.None <= 0 || insert.Stream.Auto <= 0 || insert.Stream.Always <= 0 || insert.Stream.TriggerRatio <= 0 {
		t.Errorf("insert: result %+v, error %v", insert, err)
	}
	latency, err := Latency(t.Context(), LatencyOptions{Options: o, Events: 60, Rate: 200, Mode: ModeBoth, HeldSnapshot: true, Foreign: ForeignHere})
	if err != nil || !latency.OK() || latency.DisturbedP99 < latency.DisturbedP50 || latency.Stream == nil || latency.Stream.Max <= 0 || latency.Stream.DisturbedP50Ratio == 0 {
		t.Errorf("latency: result %+v, error %v", latency, err)
	}
	if !strings.Contains(out.String(), "stream, disturbed") {
		t.Error("the disturbed ones have no row")
	}
	checkEmpty(t, url)
}

func TestHistory(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	o, _ := options(t, url)
	r, err := History(t.Context(), HistoryOptions{Options: o, Events: 1000, Keys: 5, ReplayRate: 1000, Rate: 100, Seconds: 1})
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK() || r.Events != 1000 || r.Repeats != 0 || r.Same.AloneP99 <= 0 || r.Other.BesideP99 <= 0 {
		t.Errorf("%+v", r)
	}
	checkEmpty(t, url)
}

func TestTakeover(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	o, out := options(t, url)
	r, err := Takeover(t.Context(), TakeoverOptions{Options: o, Rate: 100, Seconds: 2, Mode: ModeBoth})
	if err != nil {
		t.Fatal(err)
	}
	for one := &r; one != nil; one = one.Stream {
		if !r.OK() || one.Events != 200 || one.Lost != 0 || one.Resumed <= 0 {
			t.Errorf("result %+v", *one)
		}
	}
	if r.Stream == nil || strings.Count(out.String(), "lost=0 repeats=") != 2 {
		t.Errorf("output %s", out)
	}
	checkEmpty(t, url)
}

func TestShards(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]ShardsOptions{
		"waits": {Events: 400, Payload: 20, Keys: 200, Concurrency: 4, HandlerTime: time.Millisecond, Relays: []int{1, 3}},
		"busy":  {Events: 200, Payload: 20, Keys: 200, Concurrency: 1, HandlerTime: 100 * time.Microsecond, Relays: []int{1, 2}, Busy: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			var out *bytes.Buffer
			want.Options, out = options(t, url)
			r, err := Shards(t.Context(), want)
			if err != nil {
				t.Fatal(err)
			}
			if !r.OK() || len(r.Scenarios) != 2 || r.Scenarios[0].Ratio != 1 || r.Scenarios[0].LargestShare != 1 || r.Scenarios[1].LargestShare >= 1 {
				t.Errorf("result %+v", r)
			}
			for i, s := range r.Scenarios {
				if n := want.Relays[i]; s.Relays != n || s.Shards != n || s.Events != int64(n*want.Events) || s.Lost != 0 || s.Duplicates != 0 || s.OutOfOrder != 0 ||
					s.EventsPerSecond <= 0 || s.FlowingPerSecond <= 0 || s.Ratio <= 0 || s.FlowingRatio <= 0 || s.RelayCPU <= 0 {
					t.Errorf("result %+v", s)
				}
			}
			if !strings.Contains(out.String(), "\nratio=") || !strings.Contains(out.String(), " lost=0 duplicates=0 out_of_order=0\n") {
				t.Error("the report has no ratio")
			}
			checkEmpty(t, url)
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
		b := &shards{drain: drain{env: e, mode: outboxsql.ModeStream}, want: ShardsOptions{Events: 10, Payload: 20, Keys: 1, Concurrency: 1}}
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
	want := DrainOptions{Options: o, Events: 10, Payload: 10}
	if _, err := Drain(t.Context(), want); err != nil {
		t.Errorf("tables without events: %v", err)
	}
	if _, err := conn.Exec(t.Context(), `INSERT INTO shop.outbox_events (event_type, payload) VALUES ('order', '1')`); err != nil {
		t.Fatal(err)
	}
	if _, err := Drain(t.Context(), want); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), `"shop"."outbox_events"`) {
		t.Errorf("got error %v, want %v with the name of the table", err, ErrInUse)
	}
	checkEmpty(t, url)
	want.Force = true
	if _, err := Drain(t.Context(), want); err != nil {
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
	for name, bench := range map[string]func(context.Context) error{
		"latency": func(ctx context.Context) error {
			_, err := Latency(ctx, LatencyOptions{Options: o, Events: 1_000_000, Rate: 10})
			return err
		},
		"soak": func(ctx context.Context) error {
			_, err := Soak(ctx, SoakOptions{Options: o, Rate: 10, Seconds: 1_000_000})
			return err
		},
		"insert": func(ctx context.Context) error {
			_, err := Insert(ctx, InsertOptions{Options: o, Writers: 2, Seconds: 1_000_000})
			return err
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- bench(ctx) }()
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

func TestMistakes(t *testing.T) {
	t.Parallel()
	o := Options{DatabaseURL: "postgres://nobody@127.0.0.1:1/none", Out: &bytes.Buffer{}}
	for name, bench := range map[string]func() error{
		"latency": func() error { _, err := Latency(t.Context(), LatencyOptions{Options: o}); return err },
		"drain":   func() error { _, err := Drain(t.Context(), DrainOptions{Options: o}); return err },
		"keys":    func() error { _, err := Drain(t.Context(), DrainOptions{Options: o, Events: 1, Keys: -1}); return err },
		"blocked keys in Kafka": func() error {
			_, err := Drain(t.Context(), DrainOptions{Options: o, Events: 1, BlockedKeys: 1, To: "kafka", Mode: ModeStream})
			return err
		},
		"blocked keys of a queue": func() error {
			_, err := Drain(t.Context(), DrainOptions{Options: o, Events: 1, BlockedKeys: 1})
			return err
		},
		"fresh events of no blocked keys": func() error {
			_, err := Drain(t.Context(), DrainOptions{Options: o, Events: 1, BlockedFresh: 1})
			return err
		},
		"too many fresh events of blocked keys": func() error {
			_, err := Drain(t.Context(), DrainOptions{Options: o, Events: 1, BlockedKeys: 1, BlockedFresh: 2, Mode: ModeStream})
			return err
		},
		"no mode": func() error {
			_, err := Drain(t.Context(), DrainOptions{Options: o, Events: 1, Mode: "log"})
			return err
		},
		"a stream that deletes": func() error {
			_, err := Drain(t.Context(), DrainOptions{Options: o, Events: 1, Mode: ModeStream, Delete: true})
			return err
		},
		"no transaction": func() error {
			_, err := Drain(t.Context(), DrainOptions{Options: o, Events: 1, Foreign: "there"})
			return err
		},
		"a consumer of Kafka": func() error {
			_, err := Drain(t.Context(), DrainOptions{Options: o, Events: 1, To: "kafka", Consume: true})
			return err
		},
		"destinations in Kafka": func() error {
			_, err := Drain(t.Context(), DrainOptions{Options: o, Events: 1, To: "kafka", Destinations: 2})
			return err
		},
		"shards of a queue": func() error {
			_, err := Drain(t.Context(), DrainOptions{Options: o, Events: 1, Shards: 2})
			return err
		},
		"too many shards": func() error {
			_, err := Drain(t.Context(), DrainOptions{Options: o, Events: 1, Mode: ModeStream, Shards: 65})
			return err
		},
		"shards": func() error { _, err := Shards(t.Context(), ShardsOptions{Options: o}); return err },
		"shards not beside one": func() error {
			_, err := Shards(t.Context(), ShardsOptions{Options: o, Events: 1, Payload: 1, Keys: 1, Concurrency: 1, Relays: []int{2}})
			return err
		},
		"too many relays": func() error {
			_, err := Shards(t.Context(), ShardsOptions{Options: o, Events: 1, Payload: 1, Keys: 1, Concurrency: 1, Relays: []int{1, 65}})
			return err
		},
		"takeover": func() error { _, err := Takeover(t.Context(), TakeoverOptions{Options: o}); return err },
		"insert":   func() error { _, err := Insert(t.Context(), InsertOptions{Options: o}); return err },
		"capture":  func() error { _, err := Capture(t.Context(), CaptureOptions{Options: o}); return err },
		"soak":     func() error { _, err := Soak(t.Context(), SoakOptions{Options: o}); return err },
		"no server": func() error {
			_, err := Soak(t.Context(), SoakOptions{Options: o, Rate: 1, Seconds: 1})
			return err
		},
		"no order":  func() error { return Serve(t.Context(), nil, nil, nil, "") },
		"bad order": func() error { return Serve(t.Context(), nil, nil, nil, "{") },
	} {
		if bench() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
