package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestBrokenIndex: an index of the deliveries lacks a row, as after a change of the collation below it. Other destinations
// receive their events, nothing panics, no delivery is repeated, and the row is delivered after REINDEX.
func TestBrokenIndex(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const events = 30
	// The others have no row that waits for its next attempt.
	for _, index := range []string{"outbox_deliveries_pkey", "outbox_deliveries_due", "outbox_deliveries_waiting", "outbox_deliveries_key"} {
		for _, mode := range bothModes() {
			t.Run(fmt.Sprint(mode, " ", index), func(t *testing.T) {
				t.Parallel()
				e := newEnvIn(t, mode)
				one, two := newRecorder(t), newRecorder(t)
				start := func() *running {
					return e.start(func(r *notifyd.Relay) {
						for name, h := range map[string]delivery.Handler{"one": one, "two": two} {
							if err := r.Handle(name, notifyd.Destination{Name: name, Handler: h}); err != nil {
								t.Error(err)
							}
						}
					}, notifyd.Config{})
				}
				first := start()
				e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) SELECT 'one', 'order', i, '1' FROM generate_series(1, 3) AS i`)
				e.untilDone()
				if err := first.end(); err != nil {
					t.Fatal(err)
				}

				// So many rows that the planner uses each index.
				e.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key, available_at)
					SELECT 1000000 + i, 'one', 'one', 'retry', 'other/' || i, now() + interval '1 day' FROM generate_series(1, 5000) AS i`)
				e.exec(`ANALYZE outbox_deliveries`)
				entry := func(is bool) {
					e.exec(`UPDATE pg_index SET indisready = $2 WHERE indexrelid = $1::text::regclass`, index, is)
				}
				entry(false)
				e.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key, replays) VALUES (2, 'one', 'one', 'retry', 'order/2', 1)`)
				entry(true)
				r := start()
				e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) SELECT 'two', 'order', i, '1' FROM generate_series(1, $1) AS i`, events)
				testenv.Await(t, "the events of the other destination", func() bool { return two.times(3+events) > 0 })
				if mode == outboxsql.ModeStream && index == "outbox_deliveries_key" {
					testenv.Await(t, "the refusal", func() bool {
						all := r.Stats().Refusals
						return len(all) == 1 && all[0].Code == "XX002" && all[0].Count > 1 && strings.Contains(all[0].Cure, "REINDEX")
					})
				}
				if mode == outboxsql.ModeQueue {
					e.until("the others are settled", `SELECT NOT EXISTS (SELECT FROM outbox_events WHERE state = 'fresh' AND event_type = 'two')`)
				}
				testenv.Await(t, "the new indexes", func() bool { // a deadlock with the relay ends one of the two
					_, err := e.pool.Exec(e.ctx, `REINDEX TABLE outbox_deliveries`)
					if err != nil && testdb.SQLState(err) != "40P01" {
						t.Fatal(err)
					}
					return err == nil
				})
				e.until("the row is delivered", `SELECT count(*) = 0 FROM outbox_deliveries WHERE event_id = 2`)
				// Without its entry in the primary key no statement finds the row again, to record its delivery.
				if n := one.times(2); n < 2 || n > 2 && index != "outbox_deliveries_pkey" {
					t.Errorf("delivered %d times, want 2", n)
				}
				for id := range int64(events) {
					if n := two.times(4 + id); n != 1 {
						t.Errorf("event %d was delivered %d times", 4+id, n)
					}
				}
				testenv.Await(t, "no refusal", func() bool { return r.Stats().Refusals == nil })
				if n := r.count("a shard panicked"); n > 0 {
					t.Errorf("%d panics", n)
				}
			})
		}
	}
}
