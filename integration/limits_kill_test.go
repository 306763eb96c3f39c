package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

// TestLimitsSurviveKills: while sessions of two relays are killed, calls fail and the destination goes down, every aggregate gets its
// events in order, limited, also by key, and none is lost.
func TestLimitsSurviveKills(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	lane := delivery.Lane{
		RateLimit: delivery.Rate{Events: 400, Per: time.Second}, RateBurst: 8, MaxAttempts: 1000,
		Backoff: delivery.Backoff{Initial: time.Millisecond, Max: 20 * time.Millisecond, Multiplier: 2},
	}
	for name, d := range map[string]notifyd.Destination{
		"limited":        {Lane: lane},
		"limited by key": {Lane: lane, RateKey: byAggregateType},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := &killRun{limitRun: newLimitRun(t, true), acked: make(map[string][]int64)}
			k.deal = k.answer
			_, stop := k.start(d)
			_, stop2 := k.start(d)
			for range 4 {
				n := len(k.until("", count(0)))
				testdb.Exec(t, k.pool, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
					SELECT 'a', 'k' || (random() * 2)::int, (random() * 9)::int::text, '{}' FROM generate_series(1, 80)`)
				k.until("it goes on", count(n+rand.IntN(15)+1))
				testdb.Exec(t, k.pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'notifyd/%' AND random() < 0.7`)
			}
			testdb.Exec(t, k.pool, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
				SELECT 'a', 'k' || a, b::text, '{}' FROM generate_series(0, 2) AS a, generate_series(0, 9) AS b`)
			k.until("all", func([]call) bool { return k.seen() == 4*80+30 })
			stop()
			stop2()
			if rows := k.read(`SELECT coalesce(string_agg(concat_ws(' ', event_id, state, ordering_key, last_error), ', '), '') FROM outbox_deliveries`); rows != "" {
				t.Error("rows are left:", rows)
			}
			k.inOrder()
		})
	}
}

// killRun records the acknowledged events of each aggregate.
type killRun struct {
	*limitRun
	acked map[string][]int64
}

func (k *killRun) answer(_ context.Context, e *delivery.Event) error {
	switch rand.IntN(30) {
	case 0:
		return fmt.Errorf("no")
	case 1:
		return delivery.Unavailable(fmt.Errorf("down"))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	name := e.AggregateType + "/" + e.AggregateID
	k.acked[name] = append(k.acked[name], e.ID)
	return nil
}

// seen returns how many events were acknowledged.
func (k *killRun) seen() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := make(map[int64]bool)
	for _, ids := range k.acked {
		for _, id := range ids {
			all[id] = true
		}
	}
	return len(all)
}

// inOrder fails the test unless each event came for the first time after all that came before it in its aggregate.
func (k *killRun) inOrder() {
	k.t.Helper()
	for name, ids := range k.acked {
		highest, met := int64(0), make(map[int64]bool)
		for _, id := range ids {
			if !met[id] && id < highest {
				k.t.Errorf("%s: %d came for the first time after %d: %v", name, id, highest, ids)
			}
			met[id], highest = true, max(highest, id)
		}
	}
}
