package integration

import (
	"context"
	"strings"
	"testing"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestSlowStatement: a statement that takes longer than the server allows is not reported as a lost database. The relay
// names the statement and the limit, keeps trying, and delivers when the statement is quick again.
func TestSlowStatement(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e := newEnvIn(t, mode)
			relay, _ := e.asRelay()
			h, seen := newRecorder(t), make(incidents, 1000)
			r := relay.relay(handleAll(t, h, delivery.Lane{Backoff: quick()}), notifyd.Config{Observer: seen})
			// The relay's statements wait for the lock, and are canceled as by their statement_timeout.
			tx, err := e.pool.Begin(e.ctx)
			if err != nil {
				t.Fatal(err)
			}
			var id int64
			if _, err := tx.Exec(e.ctx, `LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE`); err != nil {
				t.Fatal(err)
			}
			if err := tx.QueryRow(e.ctx, `INSERT INTO outbox_events (event_type, payload) VALUES ('order.created', '{}') RETURNING id`).Scan(&id); err != nil {
				t.Fatal(err)
			}
			canceled, stop := context.WithCancel(e.ctx)
			defer stop()
			go func() {
				for canceled.Err() == nil {
					_, _ = e.pool.Exec(canceled, `SELECT pg_cancel_backend(pid), pg_sleep(0.1) FROM pg_stat_activity
						WHERE datname = current_database() AND application_name LIKE 'notifyd/%' AND wait_event_type = 'Lock'`)
				}
			}()
			i := seen.until(t, delivery.IncidentRefused)
			stop()
			if text := i.Err.Error(); !strings.Contains(text, "57014") || mode == outboxsql.ModeQueue && !strings.Contains(text, "statement_timeout of 10s") {
				t.Errorf("incident %v", i.Err)
			}
			if s := r.Stats(); s.DatabaseDown || len(s.Refusals) == 0 || s.Refusals[0].Code != "57014" {
				t.Errorf("down %t, refusals %+v", s.DatabaseDown, s.Refusals)
			}
			if err := tx.Commit(e.ctx); err != nil {
				t.Fatal(err)
			}
			if got := h.next(); got.ID != id {
				t.Errorf("got event %d, want %d", got.ID, id)
			}
			e.untilDone()
			seen.until(t, delivery.IncidentAccepted)
			if n, log := h.times(id), r.log.text(); n != 1 || strings.Contains(log, "database does not answer") {
				t.Errorf("delivered %d times; the log:\n%s", n, log)
			}
		})
	}
}

// TestSlowTakeover: a shard whose position takes seconds to be taken over is taken over all the same,
// and the leases of the other shards do not wait for it.
func TestSlowTakeover(t *testing.T) {
	t.Parallel()
	e := newEnvIn(t, outboxsql.ModeStream)
	slow, fast := newRecorder(t), newRecorder(t)
	register := func(r *notifyd.Relay) {
		if err := r.Handle("f", notifyd.Destination{Name: "fast", Handler: fast}); err != nil {
			t.Fatal(err)
		}
		if err := r.Handle("s", notifyd.Destination{Name: "slow", Handler: slow}); err != nil {
			t.Fatal(err)
		}
	}
	e.exec(`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(4); RETURN NEW; END';
		CREATE TRIGGER slow BEFORE UPDATE ON outbox_positions FOR EACH ROW
		WHEN (NEW.destination = 'slow' AND NEW.owner IS NOT NULL AND OLD.owner IS DISTINCT FROM NEW.owner) EXECUTE FUNCTION slow()`)
	r := e.relay(register, notifyd.Config{})
	f, s := e.insert("f", `1`), e.insert("s", `1`)
	if got := fast.next(); got.ID != f {
		t.Errorf("got event %d, want %d", got.ID, f)
	}
	if got := slow.next(); got.ID != s {
		t.Errorf("got event %d, want %d", got.ID, s)
	}
	e.untilDone()
	if log := r.log.text(); strings.Contains(log, "no connection to renew the leases") {
		t.Errorf("the session was lost:\n%s", log)
	}
}
