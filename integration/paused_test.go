package integration

import (
	"context"
	"testing"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/ops"
)

// TestPausedFromTheStart: a relay starts while it cannot read which destinations are paused. It delivers nothing until it
// can, and does not report an outage.
func TestPausedFromTheStart(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h, seen := newEnvIn(t, mode), newRecorder(t), make(incidents, 1000)
			e.exec(`INSERT INTO outbox_pauses (destination, paused_by) VALUES ('all', 'ann')`)
			id := e.insert("order.created", `{}`)
			tx, err := e.pool.Begin(e.ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(context.WithoutCancel(e.ctx)) //nolint:errcheck // it may have ended
			if _, err := tx.Exec(e.ctx, `LOCK TABLE outbox_pauses IN ACCESS EXCLUSIVE MODE`); err != nil {
				t.Fatal(err)
			}
			r := e.start(handleAll(t, h, delivery.Lane{}), notifyd.Config{Observer: seen})
			testenv.Await(t, "a refusal, or a delivery", func() bool { return len(r.Stats().Refusals) > 0 || h.times(id) > 0 })
			if s := r.Stats(); h.times(id) > 0 || s.DatabaseDown || s.Refusals[0].Code != "55P03" {
				t.Fatalf("%d deliveries, database down: %t, refusals: %+v", h.times(id), s.DatabaseDown, s.Refusals)
			}
			if err := tx.Commit(e.ctx); err != nil {
				t.Fatal(err)
			}
			r.waitReady()
			seen.until(t, delivery.IncidentAccepted)
			if s := r.Stats(); !s.Destinations[0].Paused || len(s.Refusals) > 0 {
				t.Errorf("%+v", s)
			}
			if _, err := r.Ops().Resume(e.ctx, "all", ops.Action{}); err != nil {
				t.Fatal(err)
			}
			e.untilDone()
			if n := h.times(id); n != 1 {
				t.Errorf("%d deliveries", n)
			}
		})
	}
}

// TestPauseAtOnce: a relay honours a pause through its own client before the call returns, and its end. A pause of a
// destination that the relay does not have is for others.
func TestPauseAtOnce(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			r := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
			client := r.Ops()
			for _, name := range []string{"all", "other"} {
				if err := client.Pause(e.ctx, name, ops.Action{Actor: "ann"}); err != nil {
					t.Fatal(err)
				}
			}
			if !r.Stats().Destinations[0].Paused {
				t.Error("the pause is not honoured")
			}
			id := e.insert("a", "{}")
			if was, err := client.Resume(e.ctx, "all", ops.Action{Actor: "ann"}); err != nil || !was {
				t.Fatal(was, err)
			}
			if r.Stats().Destinations[0].Paused {
				t.Error("the end of the pause is not honoured")
			}
			e.untilDone()
			if n := h.times(id); n != 1 {
				t.Errorf("%d deliveries", n)
			}
		})
	}
}
