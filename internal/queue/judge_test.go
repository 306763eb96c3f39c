package queue

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/sleep"
)

// TestJudgements: a judgement holds for one attempt of an event as it is, until it is used, and the number of judgements is bounded.
func TestJudgements(t *testing.T) {
	t.Parallel()
	_, d, slow := newTestScheduler(t)
	lanes := d.QueueLanes()
	slow.Destination().RateKey = func(*delivery.Candidate) (string, error) { return "", nil }
	j := judge{d: d}
	work := func(id int64, payload string) *Work {
		return &Work{Row: deliveries.Row{Event: delivery.Event{ID: id, Payload: []byte(payload)}}}
	}
	knows := func(id int64, payload string, l dispatch.QueueLane) bool {
		known, ok := j.of(work(id, payload), l)
		return ok && known.drops
	}
	add := func(id int64) { j.add(work(id, "a"), slow, judgement{drops: true}) }

	if knows(1, "a", slow) {
		t.Error("knows an event that was not judged")
	}
	add(1)
	if !knows(1, "a", slow) || knows(1, "edited", slow) {
		t.Error("a judgement does not hold for exactly the payload that was judged")
	}
	for name, change := range map[string]func(*Work){
		"type":      func(w *Work) { w.Event.Type = "edited" },
		"headers":   func(w *Work) { w.Event.Headers = map[string]string{"region": "eu"} },
		"aggregate": func(w *Work) { w.Event.AggregateID = "edited" },
		"time":      func(w *Work) { w.Event.CreatedAt = time.Unix(1, 0) },
		"failures":  func(w *Work) { w.Failures = 1 },
		"replay":    func(w *Work) { w.Event.Replay = 1 },
		"report":    func(w *Work) { w.Event.DeadLetter = &delivery.DeadLetter{Destination: "other"} },
	} {
		w := work(1, "a")
		change(w)
		if _, ok := j.of(w, slow); ok {
			t.Errorf("a judgement holds for another event: %s", name)
		}
	}
	for _, l := range lanes {
		if l != slow && knows(1, "a", l) {
			t.Error("a judgement holds for another destination")
		}
	}

	j.used(work(1, "a"), slow)
	if knows(1, "a", slow) || j.n.Load() != 0 {
		t.Error("a judgement was used twice")
	}

	for id := range int64(maxJudgements + 5) {
		add(id)
	}
	if n := j.n.Load(); n != maxJudgements || knows(4, "a", slow) || !knows(5, "a", slow) {
		t.Errorf("%d judgements after an overflow, want %d without the oldest", n, maxJudgements)
	}
}

// writeLarge inserts and commits an event that no claim evaluates.
func (db *fakeDB) writeLarge(typ string) {
	w := db.begin()
	id := w.insert(typ, 0)
	db.set(func() { db.events[id].payload = make([]byte, largePayload) })
	w.commit()
}

// TestSlowEvaluationHoldsUpOneClaimer: while a claimer evaluates a large event for a second, the others do not evaluate it too, and
// deliver other events at once.
func TestSlowEvaluationHoldsUpOneClaimer(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var large, small calls
		var evaluations atomic.Int32
		cfg := testLane()
		cfg.Filter = func(*delivery.Candidate) (bool, error) {
			evaluations.Add(1)
			sleep.For(context.Background(), time.Second)
			return true, nil
		}
		r.to(t, "a", large.handler(nil), cfg, "x")
		r.to(t, "b", small.handler(nil), testLane(), "y")
		r.start()
		<-r.Ready()

		db.writeLarge("x")
		for n := 1; n <= 9; n++ {
			after(100 * time.Millisecond)
			db.write("y", 1)
			after(10 * time.Millisecond)
			if small.n() != n {
				t.Fatalf("%d of %d small events delivered", small.n(), n)
			}
		}

		eventually(t, "delivered", db.empty)
		if evaluations.Load() != 1 || large.n() != 1 {
			t.Errorf("%d evaluations, %d deliveries, want 1 of each", evaluations.Load(), large.n())
		}
	})
}

// TestLimitedEventsAreEvaluatedOnce: the judgement about a large event that the rate limit delays is kept.
func TestLimitedEventsAreEvaluatedOnce(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]delivery.RateKey{
		"together": nil,
		"by key":   func(*delivery.Candidate) (string, error) { return "k", nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *bubble) {
				db, r := t.db, t.r
				var c calls
				var evaluations atomic.Int32
				cfg := testLane()
				cfg.RateLimit, cfg.RateBurst, cfg.RateKey = delivery.Rate{Events: 1, Per: time.Second}, 1, key
				cfg.Filter = func(*delivery.Candidate) (bool, error) {
					evaluations.Add(1)
					return true, nil
				}
				r.to(t, "a", c.handler(nil), cfg, "x")

				for range 5 {
					db.writeLarge("x")
				}
				r.start()
				eventually(t, "delivered", db.empty)

				if evaluations.Load() != 5 || c.n() != 5 {
					t.Errorf("%d evaluations, %d deliveries, want 5 of each", evaluations.Load(), c.n())
				}
			})
		})
	}
}

// TestFilteredEventsAreCountedOnce: two relays may evaluate a large event that is not for the destination, and one counts it.
func TestFilteredEventsAreCountedOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		const events = 50
		relays := []*relay{t.r, newRelay(t, t.db, 2, testConfig())}
		cfg := testLane()
		cfg.Filter = func(*delivery.Candidate) (bool, error) {
			sleep.For(context.Background(), 10*time.Millisecond)
			return false, nil
		}
		for range events {
			t.db.writeLarge("x")
		}
		for _, r := range relays {
			var none calls
			r.to(t, "a", none.handler(nil), cfg, "x")
			r.start()
		}
		eventually(t, "all filtered", t.db.empty)

		counted := uint64(0)
		for _, r := range relays {
			counted += r.Dispatcher.Stats().Destinations[0].Filtered
		}
		if counted != events {
			t.Errorf("counted %d filtered events, want %d", counted, events)
		}
		if err := relays[1].stop(); err != nil {
			t.Error(err)
		}
	})
}
