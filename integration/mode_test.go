package integration

import (
	"errors"
	"slices"
	"testing"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestModeEndsRelay: a relay of a queue that lost its sessions, and finds a
// stream when it reconnects, ends with an error, and marks no event. After a
// restart it reads the stream.
func TestModeEndsRelay(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	rec := newRecorder(t)
	register := func(r *notifyd.Relay) {
		if err := r.Handle("*", notifyd.Destination{Name: "all", Handler: rec}); err != nil {
			t.Error(err)
		}
	}
	r := e.relay(register, notifyd.Config{})
	e.exec(`BEGIN; UPDATE outbox_mode SET mode = 'stream';
		INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 10);
		SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'notifyd/%'; COMMIT`)
	if err := <-r.done; !errors.Is(err, outboxsql.ErrMode) {
		t.Errorf("ended with %v", err)
	}
	r.done <- nil // for the end of the test
	e.relay(register, notifyd.Config{})
	for range 10 {
		rec.next()
	}
	if n := scan[int](e, `SELECT count(*) FROM outbox_events WHERE state <> 'fresh'`); n > 0 {
		t.Errorf("%d events of a stream were marked", n)
	}
}

// TestStreamBecomesQueue: the destinations of a stream get exactly their missing
// events from the relay of a queue.
func TestStreamBecomesQueue(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.setMode(outboxsql.ModeStream, outboxsql.ModeOptions{})
	first := scan[int64](e, `WITH w AS (INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
		SELECT CASE i % 2 WHEN 0 THEN 'both' ELSE 'one' END, 'order', i % 50, '1' FROM generate_series(1, 1000) AS i RETURNING id) SELECT min(id) - 1 FROM w`)
	e.exec(`INSERT INTO outbox_positions (destination, head, open) VALUES ('x', $1::bigint + 900, int8multirange(int8range($1::bigint + 10, $1::bigint + 20))), ('y', $1::bigint + 500, '{}'), ('', $1::bigint + 900, '{}')`, first)
	e.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key) VALUES ($1 + 30, 'x', 'both', 'retry', 'order/30'), ($1 + 80, 'x', 'both', 'parked', 'order/30')`, first)
	routes := map[string][]string{"both": {"x", "y"}, "one": {"x"}}
	e.setMode(outboxsql.ModeQueue, outboxsql.ModeOptions{
		Route: func(eventType string) []string { return routes[eventType] },
	})
	owed := map[string][]int64{"x": {30, 80}}
	for i := int64(1); i <= 1000; i++ {
		if i >= 10 && i < 20 || i > 900 {
			owed["x"] = append(owed["x"], i)
		}
		if i > 500 && i%2 == 0 {
			owed["y"] = append(owed["y"], i)
		}
	}
	rec := map[string]*recorder{"x": newRecorder(t), "y": newRecorder(t)}
	e.relay(func(r *notifyd.Relay) {
		for name, h := range rec {
			if err := r.Add(notifyd.Destination{Name: name, Handler: h}); err != nil {
				t.Error(err)
			}
		}
		for pattern, names := range routes {
			if err := r.Route(pattern, names...); err != nil {
				t.Error(err)
			}
		}
	}, notifyd.Config{})
	e.until("everything is delivered", `SELECT NOT EXISTS (SELECT FROM outbox_deliveries) AND NOT EXISTS (SELECT FROM outbox_events WHERE state <> 'done')`)
	for name, h := range rec {
		close(h.calls)
		var got []int64
		for event := range h.calls {
			got = append(got, event.ID-first)
		}
		slices.Sort(got)
		slices.Sort(owed[name])
		if !slices.Equal(got, owed[name]) {
			t.Errorf("%s received %v, want %v", name, got, owed[name])
		}
	}
}

func (e *env) setMode(mode outboxsql.Mode, o outboxsql.ModeOptions) {
	e.t.Helper()
	conn, err := e.pool.Acquire(e.ctx)
	if err != nil {
		e.t.Fatal(err)
	}
	defer conn.Release()
	if err := outboxsql.SetMode(e.ctx, conn.Conn(), "public", mode, o); err != nil {
		e.t.Fatal(err)
	}
}

// TestBeginningAfterAQueue: a destination that begins at the beginning gets the events that the queue has delivered to
// others. Destinations that the queue served continue where the queue ended.
func TestBeginningAfterAQueue(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	old, added := newRecorder(t), newRecorder(t)
	e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 50)`)
	r := e.relay(func(r *notifyd.Relay) {
		if err := r.Handle("*", notifyd.Destination{Name: "old", Handler: old}); err != nil {
			t.Error(err)
		}
	}, notifyd.Config{})
	for range 50 {
		old.next()
	}
	e.untilDone()
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	e.setMode(outboxsql.ModeStream, outboxsql.ModeOptions{})
	last := e.insert("a", "1")
	e.relay(func(r *notifyd.Relay) {
		if err := errors.Join(r.Add(notifyd.Destination{Name: "old", Handler: old}), r.Add(notifyd.Destination{Name: "added", Handler: added, Lane: delivery.Lane{StartFrom: "beginning"}}), r.Route("*", "old", "added")); err != nil {
			t.Error(err)
		}
	}, notifyd.Config{})
	if got := old.next(); got.ID != last {
		t.Errorf("old gets event %d again", got.ID)
	}
	for range 51 {
		added.next()
	}
	added.each(51)
}

// TestStreamKeepsNothing: with a retention of 0 the relay of a stream deletes events
// some seconds after their delivery.
func TestStreamKeepsNothing(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.setMode(outboxsql.ModeStream, outboxsql.ModeOptions{})
	rec := newRecorder(t)
	e.relay(func(r *notifyd.Relay) {
		if err := r.Handle("*", notifyd.Destination{Name: "all", Handler: rec}); err != nil {
			t.Error(err)
		}
	}, notifyd.Config{Retention: notifyd.Retention{Keep: notifyd.None, Batch: 100}})
	e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 250)`)
	e.until("all events are deleted", `SELECT NOT EXISTS (SELECT FROM outbox_events)`)
	rec.each(250)
}

// TestQueueBecomesStream: the relay of a stream delivers exactly the events that the queue had left: unfinished events
// below the beginning, quarantined events, and stored deliveries.
func TestQueueBecomesStream(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, state)
		SELECT 'a', 'order', i % 50, '1', CASE WHEN i % 2 = 0 OR i > 9500 THEN 'fresh' WHEN i % 99 = 0 THEN 'deferred' ELSE 'done' END FROM generate_series(1, 10000) AS i`)
	e.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key, lease_owner, lease_token, lease_until)
		SELECT id, 'x', 'a', CASE WHEN running THEN 'running' ELSE 'retry' END, 'order/' || aggregate_id, one, one + 0, CASE WHEN running THEN now() + interval '1 hour' END
		FROM (SELECT *, CASE WHEN running THEN 1 END AS one FROM (SELECT *, id % 4 = 1 AS running FROM outbox_events WHERE state = 'deferred') AS d) AS d`)
	owed := scan[int](e, `SELECT count(*) FROM outbox_events WHERE state <> 'done'`)
	e.setMode(outboxsql.ModeStream, outboxsql.ModeOptions{})
	if n := scan[int](e, `SELECT count(*) FROM outbox_deliveries WHERE destination = ''`); n == 0 {
		t.Error("no event was put aside")
	}
	rec := newRecorder(t)
	e.relay(func(r *notifyd.Relay) {
		if err := r.Handle("*", notifyd.Destination{Name: "x", Handler: rec}); err != nil {
			t.Error(err)
		}
	}, notifyd.Config{})
	for range owed {
		if event := rec.next(); event.ID%2 == 1 && event.ID <= 9500 && event.ID%99 != 0 {
			t.Errorf("event %d was done, and comes again", event.ID)
		}
	}
	e.until("everything is settled", `SELECT NOT EXISTS (SELECT FROM outbox_deliveries) AND open = '{}' AND head = outbox_last_id() FROM outbox_positions WHERE destination = 'x'`)
	rec.each(owed)
}
