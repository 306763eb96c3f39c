package queue

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/deliveries"
)

// fails is a handler that fails with err until the given attempt.
func fails(until int, err error) func(context.Context, *delivery.Event) error {
	return func(_ context.Context, e *delivery.Event) error {
		if e.Attempt < until {
			return err
		}
		return nil
	}
}

func TestRunRetriesWithinTheBackoff(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var c calls
		cfg := testLane()
		cfg.MaxAttempts, cfg.Backoff = 10, delivery.Backoff{Initial: time.Second, Max: 4 * time.Second, Multiplier: 2}
		r.to(t, "a", c.handler(fails(5, errors.New("no"))), cfg, "x")
		r.start()
		id := db.write("x", 1)[0]
		eventually(t, "delivered", db.empty)
		c.once(t, []int64{id})
		all := c.all()
		if len(all) != 5 {
			t.Fatalf("%d calls", len(all))
		}
		for i, one := range all {
			if one.attempt != i+1 {
				t.Errorf("call %d is attempt %d", i, one.attempt)
			}
			if i == 0 {
				continue
			}
			// Full jitter: from zero to twice the base.
			most := 2*cfg.Backoff.Initial<<(i-1) + 10*time.Millisecond
			if wait := one.at.Sub(all[i-1].at); wait > most {
				t.Errorf("retry %d after %v, at most %v", i, wait, most)
			}
		}
	})
}

// TestRunRetriesByTheSchedule: each failure has its pause, give or take a tenth, and the last pause repeats.
func TestRunRetriesByTheSchedule(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var c calls
		cfg := testLane()
		cfg.MaxAttempts, cfg.Retry = 10, []time.Duration{time.Second, 3 * time.Second, 10 * time.Second}
		r.to(t, "a", c.handler(fails(5, errors.New("no"))), cfg, "x")
		r.start()
		db.write("x", 1)
		eventually(t, "delivered", db.empty)

		all := c.all()
		if len(all) != 5 {
			t.Fatalf("%d calls", len(all))
		}
		for i, pause := range append(cfg.Retry, 10*time.Second) {
			wait := all[i+1].at.Sub(all[i].at)
			if wait < pause-pause/10 || wait > pause+pause/10+10*time.Millisecond {
				t.Errorf("attempt %d after %v, want %v", i+2, wait, pause)
			}
		}
	})
}

func TestRunRetryAfterWinsOverTheBackoff(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var c calls
		r.to(t, "a", c.handler(fails(2, delivery.RetryAfter(17*time.Second, errors.New("later")))), testLane(), "x")
		r.start()
		db.write("x", 1)
		eventually(t, "delivered", db.empty)
		all := c.all()
		if wait := all[1].at.Sub(all[0].at); wait < 17*time.Second || wait > 17*time.Second+10*time.Millisecond {
			t.Errorf("tried again after %v", wait)
		}
	})
}

func TestRunBuriesWhatCannotBeDelivered(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err   error
		calls int
		text  string
	}{
		"permanent":    {delivery.Permanent(errors.New("too large")), 1, "too large"},
		"attempts up":  {errors.New("no"), 3, "no"},
		"retry after":  {delivery.RetryAfter(time.Second, errors.New("slowly")), 3, "slowly"},
		"both at once": {delivery.RetryAfter(time.Second, delivery.Permanent(errors.New("gone"))), 1, "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *bubble) {
				db, r := t.db, t.r
				var c calls
				r.to(t, "a", c.handler(fails(100, tc.err)), testLane(), "x")
				r.start()
				id := db.write("x", 1)[0]
				eventually(t, "done", db.empty)
				row, _ := db.row(id, "a")
				if c.n() != tc.calls || row.State != deliveries.Dead || row.Failures != tc.calls || row.Class != "event" || row.Err != tc.text {
					t.Errorf("%d calls, row %+v", c.n(), row.Entry)
				}
			})
		})
	}
}

func TestRunTurnsAPanicIntoAFailure(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var c calls
		cfg := testLane()
		cfg.MaxAttempts = 1
		r.to(t, "a", c.handler(func(context.Context, *delivery.Event) error { panic("nil map") }), cfg, "x")
		r.to(t, "b", delivery.BatchHandlerFunc(func(context.Context, []*delivery.Event) []error { panic("nil map") }), cfg, "y")
		r.start()
		ids := append(db.write("x", 1), db.write("y", 1)...)
		eventually(t, "done", db.empty)
		for i, dest := range []string{"a", "b"} {
			row, _ := db.row(ids[i], dest)
			if row.State != deliveries.Dead || !strings.Contains(row.Err, "the handler panicked: nil map\n") || !strings.Contains(row.Err, "outcome_test.go") {
				t.Errorf("%s: %+v", dest, row.Entry)
			}
		}
	})
}

// TestPanicOfAClaimer: a panic between a claim and its settlement is reported as a refused statement, and ends neither the
// process nor the deliveries. The events are delivered again.
func TestPanicOfAClaimer(t *testing.T) {
	t.Parallel()
	for op, last := range map[string]int32{"claim": 6, "settle": 3} { // four claimers begin with an empty claim
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *bubble) {
				db, r := t.db, t.r
				var c calls
				cfg := testLane()
				cfg.Concurrency = 2
				r.to(t, "a", c.handler(takes(time.Millisecond)), cfg, "x")
				var operations atomic.Int32
				db.faults = func(at string) faultKind {
					if at == op && operations.Add(1) <= last {
						panic("nil map")
					}
					return noFault
				}
				r.start()
				db.write("x", 100)
				eventually(t, "done", func() bool { return operations.Load() > last && db.empty() })
				for _, want := range []string{"database refuses a statement", "a claimer panicked: nil map", "queue.(*claimer).run"} {
					if r.log.count(want) == 0 {
						t.Errorf("%q is missing in the log", want)
					}
				}
			})
		})
	}
}

func TestRunNamesTheTimeout(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var c calls
		cfg := testLane()
		cfg.MaxAttempts, cfg.Timeout = 1, 3*time.Second
		r.to(t, "a", c.handler(takes(time.Hour)), cfg, "x")
		r.start()
		begin := time.Now()
		id := db.write("x", 1)[0]
		eventually(t, "done", db.empty)
		row, _ := db.row(id, "a")
		if !strings.Contains(row.Err, "delivery timeout of 3s") || time.Since(begin) < cfg.Timeout {
			t.Errorf("after %v: %+v", time.Since(begin), row.Entry)
		}
	})
}

func TestRunDecidesForEachEventOfABatch(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		acks := make(chan int64, 100)
		r.to(t, "a", delivery.BatchHandlerFunc(func(_ context.Context, events []*delivery.Event) []error {
			errs := make([]error, len(events))
			for i, e := range events {
				if e.ID%2 == 0 {
					errs[i] = delivery.Permanent(errors.New("even"))
				} else {
					acks <- e.ID
				}
			}
			return errs
		}), testLane(), "x")
		r.start()
		ids := db.write("x", 50)
		eventually(t, "done", db.empty)
		if len(acks) != 25 {
			t.Errorf("%d delivered", len(acks))
		}
		for _, id := range ids {
			if row, ok := db.row(id, "a"); ok != (id%2 == 0) || ok && row.State != deliveries.Dead {
				t.Errorf("event %d: %t %+v", id, ok, row.Entry)
			}
		}
	})
}

func TestRunDelaysAndReportsUnrouted(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var c calls
		r.to(t, "a", c.handler(nil), testLane(), "x")
		r.start()
		w := db.begin()
		begin := time.Now()
		id := w.insert("x", 42*time.Second)
		w.commit()
		db.write("nowhere", 3)
		eventually(t, "delivered", func() bool { return c.n() == 1 })
		if wait := time.Since(begin); wait < 42*time.Second || wait > 42*time.Second+10*time.Millisecond {
			t.Errorf("delivered after %v", wait)
		}
		after(time.Second)
		c.once(t, []int64{id})
		if db.unfinished() != 3 || r.log.count("no route matches") != 1 {
			t.Errorf("%d events left, %d reports", db.unfinished(), r.log.count("no route matches"))
		}
		// A relay with a route takes them.
		var c2 calls
		other := newRelay(t, db, 2, testConfig())
		other.to(t, "b", c2.handler(nil), testLane(), "nowhere")
		other.start()
		eventually(t, "all delivered", db.empty)
		if err := other.stop(); err != nil {
			t.Error(err)
		}
		c2.once(t, []int64{2, 3, 4})
	})
}
