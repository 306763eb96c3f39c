package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// detach takes the partition of all events out of the table. The returned function puts it back.
func (e *env) detach() (attach func()) {
	e.t.Helper()
	name := scan[string](e, `SELECT tableoid::regclass::text FROM outbox_events ORDER BY id LIMIT 1`)
	bound := scan[string](e, `SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = to_regclass($1)`, name)
	e.exec(`ALTER TABLE outbox_events DETACH PARTITION ` + name)
	return func() {
		e.t.Helper()
		e.exec(`ALTER TABLE outbox_events ATTACH PARTITION ` + name + ` ` + bound)
	}
}

// TestMissingEvents: stored deliveries whose events are out of sight for a moment stay, are counted and
// named, and are delivered once the events are back, in the order of their aggregates: those that had
// failed, those of a type that gains a route meanwhile, and delayed ones.
func TestMissingEvents(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e := newEnvIn(t, mode)
			e.partition(time.Time{})
			const events = 200
			var up atomic.Bool
			var mu sync.Mutex
			last := make(map[string]int64)
			h := newRecorder(t)
			h.answer = func(_ context.Context, ev *delivery.Event) error {
				if !up.Load() {
					return errors.New("not yet")
				}
				mu.Lock()
				defer mu.Unlock()
				line := ev.Destination + "/" + ev.AggregateID
				if ev.AggregateID != "" && mode == outboxsql.ModeStream && last[line] >= ev.ID {
					t.Errorf("event %d of %s came after %d", ev.ID, line, last[line])
				}
				last[line] = ev.ID
				return nil
			}
			handle := func(patterns ...string) func(r *notifyd.Relay) {
				return func(r *notifyd.Relay) {
					for i, p := range patterns {
						if err := r.Handle(p, notifyd.Destination{Name: fmt.Sprint("h", i), Handler: h, Lane: delivery.Lane{Backoff: quick(), MaxAttempts: 1_000_000}}); err != nil {
							t.Error(err)
						}
					}
				}
			}
			relay := e.relay(handle("a.*"), notifyd.Config{})
			e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, available_at)
				SELECT CASE WHEN i % 4 = 0 THEN 'b.x' ELSE 'a.x' END, CASE WHEN i % 2 = 0 THEN 'order' END, CASE WHEN i % 2 = 0 THEN i % 20 END, '1',
				CASE WHEN i % 10 = 1 THEN now() + interval '1 second' END FROM generate_series(1, $1) AS i`, events)
			e.until("all deliveries are stored", `SELECT count(*) = $1 FROM outbox_deliveries`, events)
			if err := relay.end(); err != nil {
				t.Fatal(err)
			}
			attach := e.detach()
			relay = e.relay(handle("a.*", "b.*"), notifyd.Config{})
			e.until("the relay has met deliveries of each kind", `SELECT count(DISTINCT event_type) = 2 FROM outbox_deliveries WHERE error_class = 'missing'`)
			if n := scan[int](e, `SELECT count(*) FROM outbox_deliveries`); n != events {
				t.Errorf("%d deliveries are left of %d", n, events)
			}
			if b, err := relay.Backlog(t.Context()); err != nil || b.Missing.N == 0 {
				t.Errorf("missing are %v, %v", b.Missing, err)
			}
			up.Store(true)
			attach()
			e.until("everything is delivered", `SELECT NOT EXISTS (SELECT FROM outbox_deliveries)`)
			h.all(e, events)
			if mode == outboxsql.ModeQueue {
				e.untilDone()
			}
			if n := relay.count("the events of stored deliveries are missing"); n != 1 {
				t.Errorf("the log says %d times that events are missing", n)
			}
		})
	}
}

// TestDetachedBeforeItIsRead: a partition is detached before a stream has read its events. Their ids do not count as
// rolled back. The events are delivered when the partition is attached again, even by a relay that has started meanwhile.
func TestDetachedBeforeItIsRead(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"", " CONCURRENTLY"} {
		t.Run("DETACH"+how, func(t *testing.T) {
			t.Parallel()
			e := newEnvIn(t, outboxsql.ModeStream)
			e.partition(time.Time{})
			e.exec(`ALTER TABLE outbox_events DETACH PARTITION outbox_events_default`) // DETACH ... CONCURRENTLY refuses a table that has one
			h := newRecorder(t)
			relay := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
			seen := e.insert("a", "1")
			e.untilDone()
			if err := relay.end(); err != nil {
				t.Fatal(err)
			}
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 50)`)
			name := scan[string](e, `SELECT tableoid::regclass::text FROM outbox_events WHERE id = $1`, seen)
			bound := scan[string](e, `SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = to_regclass($1)`, name)
			for range 3 { // the last call moves the sequence
				e.exec(`SELECT outbox_partitions_extend(now() + interval '1 day', 3)`)
			}
			e.exec(`ALTER TABLE outbox_events DETACH PARTITION ` + name + how)
			for range 2 {
				relay = e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
				e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 5)`)
				e.exec(`BEGIN; INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1'); ROLLBACK`, pgx.QueryExecModeSimpleProtocol)
				last := e.insert("a", "1")
				e.until("ids that were rolled back are no longer waited for", `SELECT head >= $1 AND NOT open && int8multirange(int8range((SELECT high FROM outbox_partitions() ORDER BY low LIMIT 1), NULL))
					FROM outbox_positions WHERE destination = 'all'`, last)
				if err := relay.end(); err != nil {
					t.Fatal(err)
				}
			}
			e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
			e.exec(`ALTER TABLE outbox_events ATTACH PARTITION ` + name + ` ` + bound)
			e.untilDone()
			h.each(1 + 50 + 2*6)
		})
	}
}

// TestTotalWaitsForDetached: a total order waits for the events of a detached partition, which come before later ones when it
// is attached again.
func TestTotalWaitsForDetached(t *testing.T) {
	t.Parallel()
	e := newEnvIn(t, outboxsql.ModeStream)
	e.partition(time.Time{})
	h := newRecorder(t)
	total := delivery.Lane{Order: delivery.OrderTotal}
	relay := e.relay(handleAll(t, h, total), notifyd.Config{})
	ids := []int64{e.insert("a", "1")}
	e.untilDone()
	if err := relay.end(); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		ids = append(ids, e.insert("a", "1"))
	}
	for range 3 { // the last call moves the sequence
		e.exec(`SELECT outbox_partitions_extend(now() + interval '1 day', 3)`)
	}
	attach := e.detach()
	relay = e.relay(handleAll(t, h, total), notifyd.Config{})
	for range 20 {
		ids = append(ids, e.insert("a", "1"))
	}
	e.until("the later events are read", `SELECT head >= $1 FROM outbox_positions WHERE destination = 'all'`, ids[len(ids)-1])
	if n := len(h.calls); n != 1 {
		t.Errorf("%d events were delivered that had to wait", n-1)
	}
	attach()
	for _, id := range ids {
		if got := h.next().ID; got != id {
			t.Fatalf("event %d was delivered, want %d", got, id)
		}
	}
	e.untilDone()
	if err := relay.end(); err != nil {
		t.Fatal(err)
	}
}

// TestRestoredBehindRelay: deliveries are restored before their events, while a relay of a stream is at work. The events
// are delivered once they are restored, also those of parked deliveries, before the later events of their aggregate.
func TestRestoredBehindRelay(t *testing.T) {
	t.Parallel()
	e := newEnvIn(t, outboxsql.ModeStream)
	h := newRecorder(t)
	e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
	const write = `INSERT INTO outbox_events (id, event_type, aggregate_type, aggregate_id, payload, created_at) `
	e.exec(`SELECT setval(pg_get_serial_sequence('outbox_events', 'id'), 100)`)
	e.insert("a", "1")
	h.next()

	e.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, ordering_key, state)
		SELECT i, 'all', 'a', 'order/7', CASE i WHEN 1 THEN 'retry' ELSE 'parked' END FROM generate_series(1, 3) AS i`)
	e.until("the relay has found that the first event is missing", `SELECT EXISTS (SELECT FROM outbox_deliveries WHERE error_class = 'missing')`)
	e.exec(write + `SELECT i, 'a', 'order', '7', '1', now() - interval '1 hour' FROM generate_series(1, 3) AS i`)
	last := scan[int64](e, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) VALUES ('a', 'order', '7', '1') RETURNING id`)
	for _, id := range []int64{1, 2, 3, last} {
		if got := h.next().ID; got != id {
			t.Fatalf("event %d was delivered, want %d", got, id)
		}
	}
	e.until("no delivery is left", `SELECT NOT EXISTS (SELECT FROM outbox_deliveries)`)
}

// TestManyMissingEvents: a relay of a stream writes many stored deliveries whose events are missing in small
// transactions, because the next events of the table wait for each.
func TestManyMissingEvents(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	e := newEnvIn(t, outboxsql.ModeStream)
	const rows, batch = 20_000, 1000
	h := newRecorder(t)
	e.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, ordering_key, state, available_at)
		SELECT i - $1, 'all', 'a', CASE WHEN i % 2 = 0 THEN 'order/' || i / 10 END, 'retry', now() - interval '1 minute' FROM generate_series(1, $1) AS i`, rows)
	e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{Batch: batch})
	last := e.insert("a", "1")
	if got := h.next().ID; got != last {
		t.Errorf("event %d was delivered, want %d", got, last)
	}
	e.until("the relay has met each delivery", `SELECT count(*) = $1 FROM outbox_deliveries WHERE error_class = 'missing' OR state = 'parked'`, rows)
	if n := scan[int](e, `SELECT max(n) FROM (SELECT count(*) AS n FROM outbox_deliveries GROUP BY xmin::text) AS x`); n > batch {
		t.Errorf("one transaction has written %d deliveries", n)
	}
}

// TestParkedInQueue: parked deliveries of a stream are restored into a queue, before a relay starts and while it is at work.
func TestParkedInQueue(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	e := newEnvIn(t, outboxsql.ModeQueue)
	const events = 2500
	restore := func() {
		e.exec(`WITH e AS (INSERT INTO outbox_events (event_type, payload, state) SELECT 'a', '1', 'deferred' FROM generate_series(1, $1) RETURNING id)
			INSERT INTO outbox_deliveries (event_id, destination, event_type, ordering_key, state) SELECT id, 'all', 'a', 'order/' || id % 7, 'parked' FROM e`, events)
	}
	restore()
	h := newRecorder(t)
	e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
	for range 2 {
		e.untilDone()
		restore()
	}
	e.untilDone()
	h.each(3 * events)
}

// TestParkedRestoredBehindRelay: parked deliveries alone are restored while a relay of a stream is at work. They are
// delivered in their order, and later events of their aggregate after those that wait.
func TestParkedRestoredBehindRelay(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for name, lane := range map[string]delivery.Lane{
		"by aggregate": {},
		"total":        {Order: delivery.OrderTotal},
		"none":         {Order: delivery.OrderNone},
		"blocking":     {OnDead: delivery.OnDead{Then: delivery.OnDeadBlock}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnvIn(t, outboxsql.ModeStream)
			h := newRecorder(t)
			e.relay(handleAll(t, h, lane), notifyd.Config{})
			e.exec(`SELECT setval(pg_get_serial_sequence('outbox_events', 'id'), 10000)`)
			e.insert("a", "1")
			h.next()
			e.untilDone()

			// More than a page of rows.
			const names, events = 3000, 2 * 3000
			e.exec(`INSERT INTO outbox_events (id, event_type, aggregate_type, aggregate_id, payload, created_at)
				SELECT i, 'a', 'order', i % $1::int, '1', now() - interval '1 hour' FROM generate_series(1, $2::int) AS i`, names, events)
			e.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, ordering_key, state)
				SELECT id, 'all', 'a', 'order/' || aggregate_id, 'parked' FROM outbox_events WHERE id < 10000`)
			last := make(map[string]int64)
			for range events {
				got := h.next()
				if before, is := last[got.AggregateID]; lane.Order != delivery.OrderNone && is && before > got.ID {
					t.Fatalf("event %d was delivered after %d", got.ID, before)
				}
				last[got.AggregateID] = got.ID
			}
			e.until("no delivery is left", `SELECT NOT EXISTS (SELECT FROM outbox_deliveries)`)
			e.insert("a", "1")
			h.next()
			e.untilDone()
		})
	}
}
