package integration

import (
	"fmt"
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
