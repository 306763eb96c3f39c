package dispatch

import (
	"time"

	"github.com/notifyd/notifyd/observe"
)

// health tracks a destination that fails, throttles or recovers. Its methods get the time, the load of the lane and the answers,
// and return what changed: the lane calls, logs and reports. While on is false, the lane skips them. The lane's lock guards
// health.
type health struct {
	cfg        *LaneConfig // of the lane
	breaker    breaker
	pacer      pacer
	quarantine *quarantine // nil unless the destination has recently failed over events, or throttled them
	spoiled    int         // calls that were throttled and are not finished: queued jobs are returned
	throttles  uint64      // answers that requested fewer deliveries
}

// change tells what answers have changed.
type change struct {
	ramps  bool // the destination answers a probe
	closes bool // it answers again
	ends   bool // it answers all lanes again
	eases  bool // it throttles no more
}

// failure tells what an unanswered call has changed.
type failure struct {
	blame  blame         // for the event
	again  bool          // the destination was recovering
	opened bool          // it was well
	longer bool          // a new pause has begun
	pause  time.Duration // the rest of it
	delay  time.Duration // how long the event stays in quarantine, if it is there
}

// throttle tells what an answer that requested fewer deliveries has changed.
type throttle struct {
	aside  bool          // it is meant for the event, which stays in quarantine for the delay
	delay  time.Duration // see aside
	begins bool          // the lane was not slowed down before
	gap    time.Duration // between the beginnings of deliveries
}

// fairPart is the part of a lane's capacity that makes a claim worthwhile: one in so many.
const fairPart = 8

// on reports whether the destination is not well, or was not a moment ago.
func (h *health) on() bool {
	return !h.breaker.closed() || h.pacer.on() || h.quarantine != nil || h.spoiled > 0
}

// allowed returns how many deliveries may begin, apart from the capacity of the lane. load counts its deliveries, and ahead
// those that workers have begun or could begin.
func (h *health) allowed(now time.Time, load, ahead int) int {
	n := maxQueued + load
	switch {
	case h.breaker.open() && (load > 0 || !h.breaker.mayProbe(now)):
		return 0
	case h.breaker.open():
		n = 1
	case h.breaker.ramping():
		n = h.breaker.allowed - ahead
	}
	if h.pacer.on() {
		n = min(n, h.pacer.room(now))
	}
	return n
}

// fair returns the capacity that makes a claim worthwhile: a part of the allowed number, which may be very little.
func (h *health) fair(capacity int) int {
	switch {
	case h.breaker.open():
		return 1
	case h.breaker.ramping():
		capacity = min(capacity, h.breaker.allowed)
	}
	fair := capacity / fairPart
	if h.pacer.on() {
		fair = min(fair, int(h.pacer.burst()/2))
	}
	return max(1, fair)
}

// rests reports whether queued deliveries must be returned.
func (h *health) rests() bool { return h.breaker.open() || h.spoiled > 0 }

// recovers reports whether each answer may let more deliveries begin.
func (h *health) recovers() bool { return h.breaker.ramping() || h.pacer.on() }

// next returns how long it takes until time alone changes something: the end of a pause, the end of a ramp below its
// limit. It is 0 if that never happens.
func (h *health) next(now time.Time) (d time.Duration) {
	if h.breaker.open() {
		d = sooner(d, h.breaker.until.Sub(now))
		if h.breaker.newFirst {
			d = sooner(d, h.breaker.turnEnds().Sub(now))
		}
	}
	if h.breaker.ramping() {
		d = sooner(d, h.breaker.checkAt.Sub(now))
	}
	return d
}

// sooner returns the shorter one of two durations, without durations of 0 and less.
func sooner(a, b time.Duration) time.Duration {
	if b > 0 && (a == 0 || b < a) {
		return b
	}
	return a
}

// heard records the answers to calls that began at the given time or later, while running calls ran in a lane of this capacity.
func (h *health) heard(now, begin time.Time, jobs []*job, outs []outcome, capacity, running int) (c change) {
	throttled, answers := 0, 0
	for i := range outs {
		switch out := &outs[i]; {
		case out.throttled:
			throttled++
		case out.answered():
			answers++
			if h.quarantine != nil {
				h.quarantine.answered(jobs[i].event.ID, begin.Add(out.from))
			}
		case out.silent && h.quarantine != nil:
			h.quarantine.counted(now, jobs[i].event.ID, out)
		}
	}
	if h.quarantine != nil && !h.quarantine.prune(now) && !h.pacer.on() {
		h.quarantine = nil
	}
	heard := answers
	if h.breaker.open() {
		heard += throttled // it works
	}
	c.ramps, c.closes = h.breaker.answered(now, heard, capacity)
	c.eases = h.pacer.ease(now, begin, answers, running)
	return c
}

// answers records that the destination has answered something else than a delivery. It reports whether the breaker has closed.
func (h *health) answers(now time.Time, capacity int) (closes bool) {
	_, closes = h.breaker.answered(now, 1, capacity)
	return closes
}

// quarantined returns the record of events, creating it if needed; it exists while any event is in it.
func (h *health) quarantined(now time.Time) *quarantine {
	if h.quarantine == nil {
		h.quarantine = &quarantine{pruned: now}
	}
	return h.quarantine
}

// lost records that the destination has failed over an event; last says that one more attempt is the last one. It opens the breaker,
// unless the event itself is at fault. Otherwise the event is put aside, so that another event finds out whether the
// destination is down.
func (h *health) lost(now time.Time, event int64, c *called, err error, last bool) (f failure) {
	f.again = h.breaker.ramping()
	if !c.shared {
		f.blame = h.quarantined(now).lose(now, event, c.proof, h.breaker.open())
	}
	if f.blame == blameStale {
		// Without an answer to any other event the destination may be down: enough for an attempt, not for the last one.
		f.blame = blameEvent
		if last {
			f.blame = blameAgain
		}
	}
	if f.blame < blameMaybe {
		f.pause, f.opened, f.longer = h.breaker.trip(now, c.began, paceAfter(err, h.cfg.LongestPause), f.blame == blameAgain)
	}
	if !c.shared && f.blame < blameEvent {
		// An event that hangs returns when the events that it has held up are done.
		// The breaker keeps it for longer, where credentials are refused; after a reload there is another one.
		f.delay = max(min(f.pause, h.cfg.LongestPause), min(firstPause, h.cfg.LongestPause), c.took)
		h.quarantine.expect(now, event, f.delay)
	}
	return f
}

// fault opens the breaker without blaming an event: the destination did not answer a request that began at the given time and was
// not about one event.
func (h *health) fault(now, began time.Time, err error) (f failure) {
	f.pause, f.opened, f.longer = h.breaker.trip(now, began, paceAfter(err, h.cfg.LongestPause), false)
	return f
}

// unanswered records that a call that began at the given time has ended without calling the destination to the end. A probe of
// that kind has failed, and the next one comes after another pause: unanswered reports whether it was one. tried says
// that an attempt of its event was counted before.
func (h *health) unanswered(now, began time.Time, tried bool) bool {
	if !h.breaker.open() {
		return false
	}
	h.breaker.trip(now, began, pace{firstPause, h.cfg.LongestPause}, tried) // new and old in turn
	return true
}

// throttled slows the lane down, because of a call that began at the given time, or puts the event aside if only that event is
// throttled. after is the pause that the destination requests, and first the first gap.
func (h *health) throttled(now time.Time, event int64, began time.Time, after, first time.Duration) (t throttle) {
	h.throttles++
	known := h.quarantined(now)
	if n := known.throttled(event); n > 0 {
		t.aside = true
		t.delay = max(min(after, longestThrottle), min(spreadWait(h.cfg.Backoff, n), longestGap))
		known.expect(now, event, t.delay)
	} else {
		t.begins = h.pacer.slow(now, began, after, first)
		known.expect(now, event, max(h.pacer.gap, h.pacer.until.Sub(now)))
		h.spoiled++
	}
	t.gap = h.pacer.gap
	return t
}

// forget makes the destination well, as far as the lane knows.
func (h *health) forget() { *h = health{cfg: h.cfg, throttles: h.throttles} }

// state returns the state for the figures.
func (h *health) state(now time.Time) observe.BreakerState {
	switch {
	case h.breaker.open() && h.breaker.mayProbe(now):
		return observe.BreakerProbing
	case h.breaker.open():
		return observe.BreakerOpen
	case h.breaker.ramping():
		return observe.BreakerRamping
	case h.pacer.on():
		return observe.BreakerThrottled
	default:
		return observe.BreakerClosed
	}
}

// spoiled counts the answers that cause queued jobs to be returned.
func spoiled(outs []outcome) (n int) {
	for i := range outs {
		if outs[i].throttled && outs[i].verdict == VerdictReleased {
			n++
		}
	}
	return n
}
