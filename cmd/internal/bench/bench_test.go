//go:build testall

package bench

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestPerformancePage of cmd/bench runs every experiment; the tests here are about what they depend on.

// options are for the database at url.
func options(t *testing.T, url string) Options {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Options{DatabaseURL: url, Out: t.Output(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Relay: []string{self}}
}

// inDatabase calls f with a database, and checks that nothing is left behind.
func inDatabase(t *testing.T, f func(context.Context, *Env) error) {
	t.Helper()
	url := testenv.Database(t)
	if err := within(t.Context(), options(t, url), nil, f); err != nil {
		t.Fatal(err)
	}
	checkEmpty(t, url)
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

// usual returns a drain with the defaults of the command.
func usual(x Drain) *Drain {
	var defaults Drain
	defaults.Define(&cobra.Command{})
	x.Payload = cmp.Or(x.Payload, defaults.Payload)
	x.Batch = cmp.Or(x.Batch, defaults.Batch)
	x.Workers = defaults.Workers
	x.Destinations = defaults.Destinations
	x.Shards = defaults.Shards
	x.To = defaults.To
	return &x
}

// TestDrainUnblocked: any change to the stored deliveries of a blocked aggregate is an error.
func TestDrainUnblocked(t *testing.T) {
	t.Parallel()
	l := load{events: 20, payload: 2, routes: 1, keys: 4, blocked: 4, mode: outboxsql.ModeStream}
	inDatabase(t, func(ctx context.Context, e *Env) error {
		d := &drain{Env: e, place: &place{}}
		// As the relay leaves them: all events are read.
		const read = `INSERT INTO $positions (destination, head) VALUES ('sink-0', $total);
			INSERT INTO $ways (destination, since, head, patterns) VALUES ('sink-0', 1, 0, '{*}'); `
		for i, c := range []struct {
			statement string
			left      int64
			unblocked bool
		}{
			{"SELECT 1", 0, false},
			{"UPDATE $positions SET head = $held", 20, false},
			{"UPDATE $positions SET open = '{[$total,$total]}'", 1, false},
			{"UPDATE $table SET state = 'deferred' WHERE id = $total", 1, false},
			{"DELETE FROM $deliveries WHERE event_id = 1", 0, true},
			{"DELETE FROM $deliveries WHERE event_id = $blocked + 1", 0, true},
			{"UPDATE $deliveries SET state = 'retry' WHERE event_id = $blocked + 1", 0, true},
			{"UPDATE $deliveries SET attempts = 2 WHERE event_id = 1", 0, true},
			{"INSERT INTO $deliveries (event_id, destination, event_type, state) VALUES ($total, 'sink-0', 'x', 'dead')", 0, true},
		} {
			schema, err := d.backlog(ctx, "case"+strconv.Itoa(i), l)
			if err != nil {
				return err
			}
			statement := strings.NewReplacer("$positions", in(schema, "outbox_positions"), "$ways", in(schema, "outbox_routes")).Replace(read + c.statement)
			if _, err := e.Pool.Exec(ctx, l.fill(schema, statement)); err != nil {
				return err
			}
			left, err := d.left(ctx, schema, l)
			if left != c.left || errors.Is(err, errUnblocked) != c.unblocked || !c.unblocked && err != nil {
				t.Errorf("%s: %d left, error %v, want %d, unblocked %v", c.statement, left, err, c.left, c.unblocked)
			}
		}
		return nil
	})
}

// TestBacklog: the events that may not be delivered come first, and each aggregate has one type.
func TestBacklog(t *testing.T) {
	t.Parallel()
	l := load{events: 500, payload: 20, routes: 3, keys: 7, blocked: 10, urgent: 2}
	inDatabase(t, func(ctx context.Context, e *Env) error {
		schema, err := (&drain{Env: e}).backlog(ctx, "backlog", l)
		if err != nil {
			return err
		}
		var got string
		err = e.Pool.QueryRow(ctx, `SELECT format('%s events to %s; held %s to %s; %s urgent from %s; %s aggregates with %s types', count(*), max(id),
			min(id) FILTER (WHERE aggregate_id LIKE 'blocked-%'), max(id) FILTER (WHERE aggregate_id LIKE 'blocked-%'),
			count(*) FILTER (WHERE event_type = 'urgent'), min(id) FILTER (WHERE event_type = 'urgent'),
			count(DISTINCT aggregate_id), count(DISTINCT (aggregate_id, event_type)) FILTER (WHERE aggregate_id IS NOT NULL)) FROM `+table(schema)).Scan(&got)
		if want := "532 events to 532; held 1 to 30; 2 urgent from 531; 17 aggregates with 17 types"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		return err
	})
}

// TestUnsettledByShard: only the events of a shard are left to it.
func TestUnsettledByShard(t *testing.T) {
	t.Parallel()
	l := load{events: 20, payload: 2, routes: 1, mode: outboxsql.ModeStream} // event 20 is of shard 0, as it has no aggregate
	inDatabase(t, func(ctx context.Context, e *Env) error {
		schema, err := (&drain{Env: e}).backlog(ctx, "unsettled", l)
		if err != nil {
			return err
		}
		for positions, want := range map[string]int64{
			`(0, 20, '{}'), (1, 20, '{}')`:      0,
			`(0, 20, '{}'), (1, 19, '{}')`:      0,
			`(0, 19, '{}'), (1, 20, '{}')`:      1,
			`(0, 20, '{[3,6)}'), (1, 17, '{}')`: 2,
		} {
			_, err := e.Pool.Exec(ctx, `DELETE FROM `+in(schema, "outbox_positions")+`; DELETE FROM `+in(schema, "outbox_routes")+`;
				INSERT INTO `+in(schema, "outbox_positions")+` (destination, shards, shard, head, open)
					SELECT 'sink-0', 2, shard, head, open::int8multirange FROM (VALUES `+positions+`) AS v(shard, head, open);
				INSERT INTO `+in(schema, "outbox_routes")+` (destination, since, head, patterns) VALUES ('sink-0', 1, 0, '{*}')`)
			if err != nil {
				return err
			}
			left, err := e.unsettled(ctx, schema, l.mode)
			if err != nil || left != want {
				t.Errorf("%s: %d left, error %v, want %d", positions, left, err, want)
			}
		}
		return nil
	})
}

// TestShardsWithoutEvents: with fewer events than shards a relay would wait forever.
func TestShardsWithoutEvents(t *testing.T) {
	t.Parallel()
	inDatabase(t, func(ctx context.Context, e *Env) error {
		ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Second, errNoShard)
		defer cancel()
		b := &shards{drain: drain{Env: e}, want: &Shards{Events: 1, Concurrency: 1}}
		if _, err := b.round(ctx, 3); !errors.Is(err, errNoShard) {
			t.Errorf("got error %v, want %v", err, errNoShard)
		}
		return nil
	})
}

func TestUsedDatabase(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn := testdb.Connect(t, url)
	if _, err := outboxsql.Migrate(t.Context(), conn, "shop", outboxsql.MigrateOptions{Notify: outboxsql.NotifyAuto}); err != nil {
		t.Fatal(err)
	}
	o := options(t, url)
	want := usual(Drain{Events: 10})
	if _, err := Measure(t.Context(), o, want); err != nil {
		t.Errorf("tables without events: %v", err)
	}
	testdb.Exec(t, conn, `INSERT INTO shop.outbox_events (event_type, payload) VALUES ('order', '1')`)
	if _, err := Measure(t.Context(), o, want); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), `"shop"."outbox_events"`) {
		t.Errorf("got error %v, want %v with the name of the table", err, ErrInUse)
	}
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

// TestCancelled: after Ctrl-C the database is as it was, and nothing is reported.
func TestCancelled(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	for name, x := range map[string]Experiment{
		"latency": &Latency{Events: 1_000_000, Rate: 10},
		"soak":    &Soak{Rate: 10, Seconds: 1_000_000},
		"insert":  &Insert{Writers: 2, Seconds: 1_000_000},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := Measure(ctx, options(t, url), x)
			ended <- err
		}()
		waitForEvents(t, url)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got error %v, want %v", name, err, context.Canceled)
		}
		checkEmpty(t, url)
	}
}

// waitForEvents waits until a bench has begun to write.
func waitForEvents(t *testing.T, url string) {
	t.Helper()
	conn := testdb.Connect(t, url)
	for written := false; !written; {
		// The size needs no name of a schema. A table may be dropped between the list and the query.
		err := conn.QueryRow(t.Context(), `SELECT coalesce(max(pg_relation_size(oid)), 0) > 0 FROM pg_class WHERE relname = 'outbox_events'`).Scan(&written)
		if err != nil && conn.IsClosed() {
			t.Fatal(err)
		}
	}
}

// TestServeWithoutOrder: the relay's process is started by a bench only.
func TestServeWithoutOrder(t *testing.T) {
	t.Parallel()
	for _, order := range []string{"", "{"} {
		if err := Serve(t.Context(), strings.NewReader(""), io.Discard, slog.New(slog.DiscardHandler), order); err == nil {
			t.Errorf("order %q: no error", order)
		}
	}
}
