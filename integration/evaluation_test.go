package integration

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestSlowEvaluation: events whose filters or rate keys take longer together than PostgreSQL lets a transaction be idle are delivered
// once each, and no claim is lost. Each evaluation takes as long as the worst condition.
func TestSlowEvaluation(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const events = 300 // 6 s
	slow := func() { <-time.After(20 * time.Millisecond) }
	for name, slowed := range map[string]notifyd.Destination{
		"filter": {Filter: func(*delivery.Candidate) (bool, error) {
			slow()
			return true, nil
		}},
		"rate_key": {
			Lane: delivery.Lane{RateLimit: delivery.Rate{Events: 100_000, Per: time.Second}},
			RateKey: func(c *delivery.Candidate) (string, error) {
				slow()
				return fmt.Sprint(c.ID % 10), nil
			},
		},
	} {
		for _, mode := range bothModes() {
			t.Run(fmt.Sprint(name, " ", mode), func(t *testing.T) {
				t.Parallel()
				e, h := newEnvIn(t, mode), newRecorder(t)
				e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT CASE id % 10 WHEN 0 THEN 'other' ELSE 'slow' END, '1' FROM generate_series(1, $1) AS g(id)`, events)
				d := slowed
				d.Name, d.Handler = "slowed", h
				r := e.relay(func(r *notifyd.Relay) {
					handleAll(t, h, delivery.Lane{})(r)
					if err := r.Handle("slow", d); err != nil {
						t.Fatal(err)
					}
				}, notifyd.Config{})
				e.untilDone()
				if err := r.end(); err != nil {
					t.Fatal(err)
				}
				if r.lostClaim() {
					t.Error("a claim was lost")
				}
				for id := range int64(events) {
					if n := h.times(id + 1); n != 1 {
						t.Fatalf("event %d was delivered %d times", id+1, n)
					}
				}
			})
		}
	}
}

// TestLargeEventsAreEvaluatedOutsideClaims: the filter and the rate key of a large event are evaluated while no transaction of the
// relay has the event locked, and each event is delivered once, or filtered out.
func TestLargeEventsAreEvaluatedOutsideClaims(t *testing.T) {
	t.Parallel()
	const events = 20
	e, h, plain := newEnv(t), newRecorder(t), newRecorder(t)
	e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', to_json(repeat('x', 100000)) FROM generate_series(1, $1)`, events)

	var filtered, keyed atomic.Int32
	unlocked := func(c *delivery.Candidate) {
		if _, err := e.pool.Exec(e.ctx, `SELECT FROM outbox_events WHERE id = $1 FOR UPDATE NOWAIT`, c.ID); err != nil {
			t.Errorf("event %d during its evaluation: %v", c.ID, err)
		}
	}

	r := e.relay(func(r *notifyd.Relay) {
		judged := notifyd.Destination{
			Name: "judged", Handler: h,
			Lane: delivery.Lane{RateLimit: delivery.Rate{Events: 100_000, Per: time.Second}},
			Filter: func(c *delivery.Candidate) (bool, error) {
				filtered.Add(1)
				unlocked(c)
				return c.ID%2 == 0, nil
			},
			RateKey: func(c *delivery.Candidate) (string, error) {
				keyed.Add(1)
				unlocked(c)
				return fmt.Sprint(c.ID % 10), nil
			},
		}
		err := errors.Join(r.Add(judged), r.Add(notifyd.Destination{Name: "plain", Handler: plain}), r.Route("*", "judged", "plain"))
		if err != nil {
			t.Fatal(err)
		}
	}, notifyd.Config{Connections: 1})
	e.untilDone()
	if err := r.end(); err != nil {
		t.Fatal(err)
	}

	for id := range int64(events) {
		want := 1 - int(id+1)%2
		if n := h.times(id + 1); n != want {
			t.Errorf("event %d was delivered %d times, want %d", id+1, n, want)
		}
		if n := plain.times(id + 1); n != 1 {
			t.Errorf("the destination without a filter got event %d %d times", id+1, n)
		}
	}
	if f, k := filtered.Load(), keyed.Load(); f != events || k != events/2 {
		t.Errorf("%d evaluations of the filter and %d of the key, want %d and %d", f, k, events, events/2)
	}
}

// TestIdleWaitsForFilters: a relay that ends when it is idle does not end while filters decide about events, however long they take.
func TestIdleWaitsForFilters(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			const events = 3
			e, h := newEnvIn(t, mode), newRecorder(t)
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, $1)`, events)
			r := e.start(func(r *notifyd.Relay) {
				filter := func(*delivery.Candidate) (bool, error) {
					<-time.After(3 * time.Second) // longer than an idle relay waits
					return true, nil
				}
				if err := r.Handle("*", notifyd.Destination{Name: "all", Handler: h, Filter: filter}); err != nil {
					t.Fatal(err)
				}
			}, notifyd.Config{UntilIdle: true, PollInterval: 20 * time.Millisecond})
			if err := r.wait(); err != nil {
				t.Fatal(err)
			}
			for id := range int64(events) {
				if n := h.times(id + 1); n != 1 {
					t.Errorf("event %d was delivered %d times", id+1, n)
				}
			}
		})
	}
}
