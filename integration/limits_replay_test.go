package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/ops"
)

// replay requests all events of the stream again.
func (r *limitRun) replay(what ops.ReplayRange) {
	r.t.Helper()
	s, err := ops.New(r.pool, ops.Config{Schema: "public"})
	if err != nil {
		r.t.Fatal(err)
	}
	what.Destination = "d"
	if _, err := s.StartReplay(r.t.Context(), what, ops.Action{}); err != nil {
		r.t.Fatal(err)
	}
}

// TestReplayByRateKeys: a replay continues although events of a key have to wait for their rate.
func TestReplayByRateKeys(t *testing.T) {
	t.Parallel()
	r := newLimitRun(t, true)
	_, stop := r.start(notifyd.Destination{Lane: delivery.Lane{RateLimit: delivery.Rate{Events: 4, Per: time.Second}, RateBurst: 1}, RateKey: byAggregateType})
	r.insert(3, "one", "")
	r.insert(3, "two", "")
	r.until("all", count(6))
	r.until("it is known", func([]call) bool {
		return r.read(`SELECT format('%s %s', head, open) FROM outbox_positions WHERE destination = 'd'`) == "6 {}"
	})
	r.replay(ops.ReplayRange{})
	r.until("all again", count(12))
	stop()
}

// TestReplayDoesNotExpire: what a person asks for again does not expire, also when it fails and its id is the one that it had.
func TestReplayDoesNotExpire(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for name, lane := range map[string]delivery.Lane{"aggregate": {}, "none": {Order: delivery.OrderNone}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newLimitRun(t, true)
			_, stop := r.start(notifyd.Destination{Lane: lane})
			testdb.Exec(t, r.pool, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, created_at) VALUES
				('a', 'k', '1', '{}', now() - interval '1 hour'), ('a', 'k', '1', '{}', now() - interval '1 hour'), ('a', '', NULL, '{}', now() - interval '1 hour')`)
			r.until("all", count(3))
			stop()
			r.deal = func(_ context.Context, e *delivery.Event) error {
				if e.Attempt == 1 {
					return delivery.RetryAfter(time.Millisecond, fmt.Errorf("again"))
				}
				return nil
			}
			lane.ExpiresAfter = time.Minute
			relay, stop := r.start(notifyd.Destination{Lane: lane})
			for i, keep := range []bool{true, false} {
				r.replay(ops.ReplayRange{KeepIDs: keep})
				all := 3 + 6*(i+1)
				r.until("all again, twice", func(calls []call) bool { return len(calls) == all || relay.Stats().Destinations[0].Expired > 0 })
				r.until("the replay is done", func([]call) bool {
					return r.read(`SELECT format('%s %s', count(*) FILTER (WHERE state = 'done'), (SELECT count(*) FROM outbox_deliveries)) FROM outbox_replays`) == fmt.Sprint(i+1, " 0")
				})
			}
			stop()
			if expired := relay.Stats().Destinations[0].Expired; expired > 0 {
				t.Error(expired, "have expired")
			}
		})
	}
}
