package health

import (
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// TestDecide: each result of a call at a destination that works, and at one that is down, has its decision: what happens
// to the event, how long it waits at least and at most, and who is at fault.
func TestDecide(t *testing.T) {
	t.Parallel()
	const (
		event       = delivery.ClassEvent
		destination = delivery.ClassDestination
		relay       = delivery.ClassRelay
	)
	lane := testLane()
	lane.Retry = []time.Duration{10 * time.Second, time.Minute}
	first, second, took := lane.Retry[0], lane.Retry[1], 2*time.Second

	for name, c := range map[string]struct {
		down bool
		f    Failed
		next Next
		wait time.Duration // give or take a tenth
		of   delivery.Class
	}{
		"error":                     {false, Failed{}, Retry, first, event},
		"error again":               {false, Failed{Attempts: 2}, Retry, second, event},
		"error, and a longer delay": {false, Failed{Result: Result{Delay: time.Hour}}, Retry, time.Hour, event},
		"error, and a shorter one":  {false, Failed{Result: Result{Delay: time.Second}}, Retry, first, event},
		"last error":                {false, Failed{Attempts: lane.MaxAttempts}, Bury, 0, event},
		"permanent":                 {false, Failed{Result: Result{Permanent: true}}, Bury, 0, event},
		"unclear":                   {false, Failed{Result: Result{Unclear: true}}, Retry, first, event},
		"unclear, permanent":        {false, Failed{Result: Result{Unclear: true, Permanent: true}}, Retry, first, event},
		"last unclear one":          {false, Failed{Attempts: lane.MaxAttempts, Result: Result{Unclear: true}}, SetAside, second, destination},
		"time-out":                  {false, Failed{Result: Result{Late: true}}, Retry, first, event},
		"time-out of a probe":       {true, Failed{Result: Result{Late: true}}, SetAside, took, destination},
		"panic":                     {false, Failed{Result: Result{Unanswered: true}}, Retry, first, event},
		"unavailable":               {false, Failed{Result: Result{Unavailable: true}}, SetAside, took, destination},
		"unavailable, last attempt": {false, Failed{Attempts: lane.MaxAttempts, Result: Result{Unavailable: true}}, SetAside, took, destination},
		"unavailable, for several":  {false, Failed{Call: Call{Shared: true}, Result: Result{Unavailable: true}}, Return, 0, destination},
		"throttled":                 {false, Failed{Result: Result{Throttled: true, Delay: time.Minute}}, Return, 0, destination},
		"machine exhausted":         {false, Failed{Result: Result{Exhausted: true}}, Return, 0, relay},
		"probe of an exhausted one": {true, Failed{Result: Result{Exhausted: true}}, Return, 0, relay},
		"must be opened again":      {false, Failed{Reopen: true}, Return, 0, destination},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := New(lane)
			now := time.Now()
			if c.down {
				h.Fault(now, now, errFailed)
				now = now.Add(lane.LongestPause)
			}

			f := c.f
			f.Event, f.Began, f.Took, f.Err = &delivery.Event{ID: 1, Type: "x"}, now, took, errFailed
			f.Attempts = max(f.Attempts, 1)
			d := h.Decide(now, &f)
			if d.Next != c.next || d.Class != c.of || d.Wait < c.wait*9/10 || d.Wait > c.wait*11/10 {
				t.Errorf("next %d in %v of class %v, want %d in %v of class %v", d.Next, d.Wait, d.Class, c.next, c.wait, c.of)
			}
			if slows := c.f.Throttled || c.f.Exhausted && !c.down; d.Throttled != slows {
				t.Errorf("the lane is slowed down: %t", d.Throttled)
			}
			if waits := h.Rests(); waits != (d.Next == Return || d.Opened || c.down) {
				t.Errorf("the lane rests: %t, after %+v", waits, d)
			}
		})
	}
}

// TestThrottledAlone: an event that is throttled while others are answered waits for its backoff, 10 s at most, or for as
// long as the destination wants.
func TestThrottledAlone(t *testing.T) {
	t.Parallel()
	lane := testLane()
	lane.Retry = []time.Duration{time.Hour}
	for after, want := range map[time.Duration]time.Duration{0: longestGap, time.Minute: time.Minute, 2 * longestThrottle: longestThrottle} {
		h := New(lane)
		now := time.Now()
		var d Decision
		for range freeThrottles {
			d = fails(&h, now, 2, Result{Throttled: true, Delay: after})
			heard(&h, now)
		}
		if d.Next != SetAside || d.Wait != want {
			t.Errorf("next %d in %v, want %v", d.Next, d.Wait, want)
		}
	}
}
