package dispatch

import (
	"errors"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// TestHealthOfAnOutage: health needs no lane and no clock. It returns what calls and answers change.
func TestHealthOfAnOutage(t *testing.T) {
	t.Parallel()
	cfg := testLane()
	h := health{cfg: &cfg}
	now, down := time.Now(), delivery.Unavailable(errors.New("down"))
	event := &job{event: &delivery.Event{ID: 1}}
	if f := h.lost(now, 1, &called{began: now}, down, false); !f.opened || !f.longer || f.delay <= 0 || !h.on() || !h.rests() {
		t.Errorf("the first failure is %+v, %+v", f, h)
	}
	if n := h.allowed(now, 0, 0); n != 0 {
		t.Errorf("%d may begin during the pause", n)
	}
	now = now.Add(h.next(now))
	if n := h.allowed(now, 0, 0); n != 1 {
		t.Errorf("%d may probe", n)
	}
	if f := h.lost(now, 2, &called{began: now}, down, false); f.opened || !f.longer {
		t.Errorf("a failed probe is %+v", f)
	}
	now = now.Add(longestPause)
	c := h.heard(now, now, []*job{event}, []outcome{{verdict: VerdictDelivered}}, 4, 1)
	if c != (change{ramps: true}) || !h.recovers() || h.rests() {
		t.Errorf("an answered probe has changed %+v", c)
	}
	for range 3 {
		c = h.heard(now, now, []*job{event}, []outcome{{verdict: VerdictDelivered}}, 4, 1)
	}
	if c != (change{closes: true}) || !h.on() {
		t.Errorf("the last answer has changed %+v; event 2 is in quarantine: %t", c, h.quarantine.has(2))
	}
	h.forget()
	if h.on() || h.rests() || h.recovers() || h.next(now) != 0 {
		t.Errorf("forgotten: %+v", h)
	}
}

// TestHealthThrottled: a throttle slows the lane down until answers come.
func TestHealthThrottled(t *testing.T) {
	t.Parallel()
	cfg := testLane()
	h := health{cfg: &cfg}
	now := time.Now()
	if r := h.throttled(now, 1, now, time.Second, 0); r.aside || !r.begins || r.gap != shortestSlowing || !h.rests() {
		t.Errorf("the first throttle is %+v", r)
	}
	if n := h.allowed(now.Add(time.Second-1), 0, 0); n != 0 {
		t.Errorf("%d may begin too early", n)
	}
	if n := h.allowed(now.Add(time.Second), 0, 0); n == 0 {
		t.Error("nothing may begin after the pause that was requested")
	}
	h.spoiled--
	now = now.Add(time.Second)
	answer := func() change {
		return h.heard(now, now, []*job{{event: &delivery.Event{ID: 1}}}, []outcome{{verdict: VerdictDelivered}}, 4, 1)
	}
	eases := false
	for i := 0; i < 1000 && !eases; i++ {
		eases = answer().eases
	}
	if c := answer(); !eases || c != (change{}) || h.on() || h.throttles != 1 {
		t.Errorf("after the answers: eases %t, then %+v, %+v", eases, c, h)
	}
}
