package health

import (
	"errors"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/laneconf"
)

// testLane is a lane with its defaults.
func testLane() *delivery.Lane {
	lane := laneconf.WithDefaults(delivery.Lane{})
	return &lane
}

func testHealth() Health { return New(testLane()) }

// fails records that a call for an event failed: its error is not one of a destination that throttles.
func fails(h *Health, now time.Time, event int64, r Result) Decision {
	return h.Decide(now, &Failed{Event: &delivery.Event{ID: event, Type: "x"}, Call: Call{Began: now}, Result: r, Attempts: 1, Err: errFailed})
}

var errFailed = errors.New("failed")

// heard records that the destination has answered event 1, in a lane of capacity 4.
func heard(h *Health, now time.Time) Change {
	h.Answered(now, 1, "x", now, true)
	return h.Record(now, now, Answers{Answered: 1}, 4, 1)
}

// TestHealthOfAnOutage: health needs no lane and no clock. It returns what calls and answers change.
func TestHealthOfAnOutage(t *testing.T) {
	t.Parallel()
	h := testHealth()
	now := time.Now()
	if f := fails(&h, now, 1, Result{Unavailable: true}); !f.Opened || !f.Longer || f.Wait <= 0 || f.Next != SetAside || !h.Impaired() || !h.Rests() {
		t.Errorf("the first failure is %+v, %+v", f, h)
	}
	if n := h.Allowed(now, 9, 0, 0); n != 0 {
		t.Errorf("%d may begin during the pause", n)
	}
	now = now.Add(h.Next(now, 0))
	if n := h.Allowed(now, 9, 0, 0); n != 9 {
		t.Errorf("%d may be chosen from", n)
	}
	if n, ok := h.Chooses(0); n != 1 || !ok {
		t.Errorf("%d may probe", n)
	}
	if f := fails(&h, now, 2, Result{Unavailable: true}); f.Opened || !f.Longer {
		t.Errorf("a failed probe is %+v", f)
	}
	now = now.Add(testLane().LongestPause)
	c := heard(&h, now)
	if c != (Change{Ramps: true, Answered: now}) || !h.Recovers() || h.Rests() {
		t.Errorf("an answered probe has changed %+v", c)
	}
	for range 3 {
		c = heard(&h, now)
	}
	if c != (Change{Closes: true, Answered: now}) || !h.Impaired() || !h.Available() {
		t.Errorf("the last answer has changed %+v; event 2 is in quarantine: %t", c, h.Quarantined(2))
	}
	h.Forget()
	if h.Impaired() || h.Rests() || h.Recovers() || h.Next(now, 1) != 0 {
		t.Errorf("forgotten: %+v", h)
	}
}

// TestHealthThrottled: a throttle slows the lane down until answers come.
func TestHealthThrottled(t *testing.T) {
	t.Parallel()
	h := testHealth()
	now := time.Now()
	if r := fails(&h, now, 1, Result{Throttled: true, Delay: time.Second}); r.Next != Return || !r.Begins || r.Gap != shortestSlowing || !h.Rests() {
		t.Errorf("the first throttle is %+v", r)
	}
	if n := h.Allowed(now.Add(time.Second-1), 9, 0, 0); n != 0 {
		t.Errorf("%d may begin too early", n)
	}
	if n, d := h.Allowed(now.Add(time.Second), 9, 0, 0), h.Next(now, 1); n == 0 || d != time.Second {
		t.Errorf("%d may begin after the pause that was requested, and the next change is in %v", n, d)
	}
	h.Finished(1)
	now = now.Add(time.Second)
	eases := false
	for i := 0; i < 1000 && !eases; i++ {
		eases = heard(&h, now).Unthrottled
	}
	if c := heard(&h, now); !eases || c != (Change{}) || h.Impaired() || h.Throttles() != 1 {
		t.Errorf("after the answers: eases %t, then %+v, %+v", eases, c, h)
	}
}

// TestHealthAsked: the snapshot has the pause that the destination requested, and the event whose answer requested it,
// until the pause is over or the destination is available.
func TestHealthAsked(t *testing.T) {
	t.Parallel()
	for name, down := range map[string]bool{"429": false, "503": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := testHealth()
			now := time.Now()
			refuse := func(now time.Time, event int64, after time.Duration) {
				fails(&h, now, event, Result{Unavailable: down, Throttled: !down, Delay: after})
			}
			expect := func(now, until time.Time, event int64) {
				t.Helper()
				if s := h.Snapshot(now); !s.AskedUntil.Equal(until) || s.AskedBy != event {
					t.Errorf("until %v by %d, want %v by %d", s.AskedUntil, s.AskedBy, until, event)
				}
			}
			h.notesPause(now, 7, time.Minute)
			expect(now, time.Time{}, 0) // the destination is available
			h.Forget()

			refuse(now, 5, 0)
			expect(now, time.Time{}, 0)
			refuse(now, 5, time.Minute)
			until := now.Add(time.Minute)
			expect(now, until, 5)
			refuse(now.Add(time.Second), 6, 59*time.Second+time.Millisecond) // the same pause, told by the handler
			expect(now, until, 5)
			expect(until, time.Time{}, 0)
			refuse(until, 8, 2*longestThrottle)
			expect(until, until.Add(longestThrottle), 8)
			if d := h.Next(until, 1); !down && d != longestThrottle {
				t.Errorf("the lane waits %v", d)
			}
			h.Forget()
			expect(until, time.Time{}, 0)
		})
	}
}

// TestHealthWithoutTrouble: what a lane may call at any time says nothing about a destination that is well.
func TestHealthWithoutTrouble(t *testing.T) {
	t.Parallel()
	h := testHealth()
	now := time.Now()
	h.Answered(now, 1, "x", now, true)
	h.Counted(now, 2, time.Second, false)
	h.Take(5)
	h.Press(5)
	h.Held(now, 100)
	if h.Impaired() || h.Waits(now, true) || h.Waits(now, false) || h.Calm(now).Closes || h.Quarantined(1) || fails(&h, now, 1, Result{Unanswered: true}).Slower {
		t.Errorf("a destination that is well has %+v", h)
	}
	if n, fair := h.Allowed(now, 7, 3, 3), h.Worthwhile(80); n != 7 || fair != 80/worthwhilePart {
		t.Errorf("%d of 7 may begin, and %d are worth a claim", n, fair)
	}
	if s := h.Snapshot(now); s != (Snapshot{}) {
		t.Errorf("the snapshot is %+v", s)
	}
}
