package health

import (
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/login"
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

// TestWaitsPage: the page has the figures of the code, and no other page repeats them.
func TestWaitsPage(t *testing.T) {
	t.Parallel()
	const page = "concepts.md"
	_, section, _ := strings.Cut(testenv.ReadFile(t, "../../docs/"+page), "\n## How long a failed event waits\n")
	section, _, _ = strings.Cut(section, "\n## ")

	lane := testLane()
	var tries time.Duration
	for n := 1; n < lane.MaxAttempts; n++ {
		tries += base(lane.Backoff, n)
	}

	figures := map[string]any{
		"| after `backoff`: %s after the first failure, then twice as long": lane.Backoff.Initial,
		"twice as long after each further one, up to %s. Each":              lane.Backoff.Max,

		"%d attempts take about":                          lane.MaxAttempts,
		"attempts take about %s hours":                    math.Round(tries.Hours()),
		"The first probe follows after %s. Later":         firstPause,
		"Later pauses are a %dnd of":                      quickShare,
		"an answer, and after %s up to an eighth":         quickTime,
		"`longest_pause` (%s) at most":                    lane.LongestPause,
		"with pauses of about %s, then":                   login.First,
		"each refusal, up to %s. A [reload]":              login.Longest,
		"of the breaker, at least %s and":                 firstPause,
		"| after %s at most, one event of the type":       longestWait,
		"a gap of %s or more, which each refusal doubles": shortestSlowing,
		"which each refusal doubles, up to %s. Where":     longestGap,
		"nothing is sent before it ends, for %s at most":  longestThrottle,
		"| after its backoff, %s at most":                 longestGap,
	}
	for text, figure := range figures {
		if want := fmt.Sprintf(strings.ReplaceAll(text, "%d", "%s"), words(figure)); !strings.Contains(section, want) {
			t.Errorf("%s does not say %q", page, want)
		}
	}
	if isDouble := lane.Backoff.Multiplier == 2 && outageShare == 8; !isDouble {
		t.Error("the words twice and eighth are wrong")
	}

	repeated := regexp.MustCompile(`(100 ms|0\.1 s) to 30 s|\b1 to 15 minutes|tak\w+ about eight hours`)
	for _, pattern := range []string{"../../README.md", "../../docs/*.md", "../../docs/destinations/*.md", "../../docs/design/*.md"} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(paths), err)
		}
		for _, path := range paths {
			if text := repeated.FindString(testenv.ReadFile(t, path)); text != "" {
				t.Errorf("%s has %q: link to %s#how-long-a-failed-event-waits", path, text, page)
			}
		}
	}
}

// words writes a figure as the page does.
func words(figure any) string {
	d, isDuration := figure.(time.Duration)
	switch {
	case !isDuration:
		return fmt.Sprint(figure)
	case d == time.Hour:
		return "an hour"
	case d == time.Minute:
		return "1 minute"
	case d > time.Minute:
		return fmt.Sprintf("%v minutes", d.Minutes())
	case d >= time.Second:
		return fmt.Sprintf("%v s", d.Seconds())
	default:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
}
