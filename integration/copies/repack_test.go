//go:build testall

package copies

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// repack runs pg_repack on all tables of a database.
func repack(t *testing.T, s *pgserver.Server, binDir, database string, args ...string) {
	t.Helper()
	cfg, err := pgx.ParseConfig(s.URL(database))
	if err != nil {
		t.Fatal(err)
	}
	// The program comes from another package than its libpq.
	all := []string{
		"LD_LIBRARY_PATH=" + filepath.Join(binDir, "..", "lib"), filepath.Join(binDir, "pg_repack"),
		"-h", cfg.Host, "-p", strconv.Itoa(int(cfg.Port)), "-U", cfg.User, "-d", database,
	}
	run(t, s, "/usr/bin/env", append(all, args...)...)
}

// repackable makes a database with pg_repack and the tables, and has a relay deliver its events.
func repackable(t *testing.T, s *pgserver.Server, name string, tables testdb.Tables) (*testdb.DB, *ordered) {
	t.Helper()
	d := testdb.At(t, create(t, s, name, ""), tables)
	d.Exec(`CREATE EXTENSION pg_repack`)
	got := &ordered{received: newReceived(), last: make(map[string]int64), failed: make(map[int64]bool)}
	relay, err := notifyd.New(testdb.Pool(t, d.URL), notifyd.Config{})
	if err == nil {
		lane := delivery.Lane{Backoff: delivery.Backoff{Initial: time.Millisecond}}
		err = relay.Handle("*", notifyd.Destination{Name: "mail", Handler: got, Lane: lane})
	}
	if err != nil {
		t.Fatal(err)
	}
	start(t, relay)
	return d, got
}

// ordered is [received] that fails the first attempt of events of the type flaky, and notes events that come behind a later
// one of their aggregate.
type ordered struct {
	*received

	mu     sync.Mutex
	last   map[string]int64 // by aggregate
	failed map[int64]bool
	late   []string
}

// Deliver implements delivery.Handler.
func (o *ordered) Deliver(ctx context.Context, e *delivery.Event) error {
	o.mu.Lock()
	fails := e.Type == "flaky" && !o.failed[e.ID]
	switch last := o.last[e.AggregateID]; {
	case fails:
		o.failed[e.ID] = true
	case e.AggregateID != "" && e.ID < last:
		o.late = append(o.late, fmt.Sprintf("%d after %d of aggregate %s", e.ID, last, e.AggregateID))
	default:
		o.last[e.AggregateID] = e.ID
	}
	o.mu.Unlock()
	if fails {
		return errors.New("not yet")
	}
	return o.received.Deliver(ctx, e)
}

// expect waits for these events, and for the end of the relay's work.
func (o *ordered) expect(t *testing.T, d *testdb.DB, mode outboxsql.Mode, ids []int64) {
	t.Helper()
	slices.Sort(ids)
	if all := o.await(t, len(ids)); !slices.Equal(all, ids) {
		t.Errorf("received %d events, want %d", len(all), len(ids))
	}
	await(t, d.Conn, settled)
	o.mu.Lock()
	defer o.mu.Unlock()
	if mode == outboxsql.ModeStream && len(o.late) > 0 {
		t.Errorf("out of order: %v", o.late)
	}
}

// write writes three events of two aggregates in a transaction, and rolls back each fifth.
func write(ctx context.Context, conn *pgx.Conn, writer, n int) (ids []int64, err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // of the writer's own accord, or after an error
	kind := "good"
	if n%20 == 0 {
		kind = "flaky"
	}
	for i := range 3 {
		var id int64
		err := tx.QueryRow(ctx, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) VALUES ($1, 'order', $2, '1') RETURNING id`,
			kind, fmt.Sprintf("%d-%d", writer, (n+i)%2)).Scan(&id)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	if n%5 == 4 {
		return nil, nil
	}
	return ids, tx.Commit(ctx)
}

// TestRepack: pg_repack rewrites all tables below a relay and writers. No event is lost or delivered twice, and a stream keeps
// the order of each aggregate.
func TestRepack(t *testing.T) {
	t.Parallel()
	s, binDir := testenv.RepackPostgres(t, nil)
	bothModes(t, func(t *testing.T, mode outboxsql.Mode) {
		t.Helper()
		for _, partitioned := range []bool{false, true} {
			name := fmt.Sprintf("%s_%t", mode, partitioned)
			d, got := repackable(t, s, name, testdb.Tables{Mode: mode, Partitioned: partitioned})
			before := testdb.List[string](t, d.Conn, files)
			done := make(chan struct{})
			written := make(chan []int64, 2)
			for w := range cap(written) {
				conn := d.Dial()
				go func() { written <- writeUntil(t, conn, w, done) }()
			}
			repack(t, s, binDir, name)
			if partitioned {
				repack(t, s, binDir, name, "--no-kill-backend", "--parent-table", "outbox_events")
			} else { // as on the page
				repack(t, s, binDir, name, "--no-kill-backend", "--table", "outbox_events", "--table", "outbox_deliveries")
			}
			close(done)
			ids := append(<-written, <-written...)
			// A position does not pass the ids of a last transaction that was rolled back.
			got.expect(t, d, mode, append(ids, d.Insert("good", 1)...))
			if again := got.twice(); len(again) > 0 {
				t.Errorf("received twice: %v", again)
			}
			for _, file := range testdb.List[string](t, d.Conn, files) {
				if slices.Contains(before, file) {
					t.Errorf("not rewritten: %s", file)
				}
			}
		}
	})
}

// files are the tables that pg_repack rewrites, with their files.
const files = `SELECT relname || ' ' || relfilenode FROM pg_class WHERE relkind = 'r' AND relpersistence = 'p' AND relname LIKE 'outbox\_%'`

// writeUntil writes events until done is closed, and returns the committed ones.
func writeUntil(t *testing.T, conn *pgx.Conn, writer int, done <-chan struct{}) (all []int64) {
	t.Helper()
	for n := 0; ; n++ {
		ids, err := write(t.Context(), conn, writer, n)
		if err != nil {
			t.Error(err)
			return all
		}
		all = append(all, ids...)
		select {
		case <-done:
			return all
		default:
		}
	}
}

// TestRepackKills: pg_repack that has waited for long for an open transaction ends all sessions that use the table, those of the
// relay as well. The transaction is lost, the relay continues, and no committed event is lost.
func TestRepackKills(t *testing.T) {
	t.Parallel()
	s, binDir := testenv.RepackPostgres(t, nil)
	bothModes(t, func(t *testing.T, mode outboxsql.Mode) {
		t.Helper()
		name := string(mode)
		d, got := repackable(t, s, name, testdb.Tables{Mode: mode})
		ids := d.Insert("good", 100)
		open := d.Dial()
		d.On(open, `BEGIN`)
		lost := testdb.One[int64](t, open, `INSERT INTO outbox_events (event_type, payload) VALUES ('good', '1') RETURNING id`)
		repack(t, s, binDir, name, "--table", "outbox_events", "--wait-timeout", "1")
		if err := open.Ping(t.Context()); err == nil {
			t.Error("the session that was waited for is there")
		}
		ids = append(ids, d.Insert("good", 100)...)
		got.expect(t, d, mode, ids)
		if slices.Contains(got.ids(), lost) {
			t.Errorf("event %d of the lost transaction came", lost)
		}
	})
}
