package health

import (
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/backoff"
	"github.com/notifyd/notifyd/observe"
)

// LongestPause is the default of Config.LongestPause.
const LongestPause = 30 * time.Second

// fairPart is the part of a lane's capacity that makes a claim worthwhile: one in so many.
const fairPart = 8

// Config has the settings of a destination that its health depends on.
type Config struct {
	// Backoff is the wait of an event while the destination throttles only that event.
	Backoff delivery.Backoff
	// LongestPause bounds the pause before a probe, at least 1 ms.
	LongestPause time.Duration
}

// Health tracks a destination that fails, throttles or recovers. Its owner's lock guards it. While Impaired returns
// false, the owner may skip the answers of the destination: only Lost, Fault and Throttle change the state then.
type Health struct {
	cfg        Config
	breaker    breaker
	pacer      pacer
	quarantine *quarantine // nil unless the destination has recently failed over events, or throttled them
	spoiled    int         // calls that were throttled and are not finished: queued deliveries are returned
	throttles  uint64      // answers that requested fewer deliveries
}

// Call is a call that has failed.
type Call struct {
	// Began is when the call began, and Took is how long it took.
	Began time.Time
	Took  time.Duration
	// Proof is when the worker's last answered call began, this call included; zero without an answered call.
	Proof time.Time
	// Shared says that the call was for several events, and none was delivered.
	Shared bool
}

// Answers counts the results of calls that ended together.
type Answers struct {
	// Answered counts the events that the destination has answered, and Throttled those that it throttled.
	Answered, Throttled int
}

// Change tells what answers have changed.
type Change struct {
	Ramps  bool // the destination answers a probe
	Closes bool // the destination is available again
	Eases  bool // the destination no longer throttles
}

// Failure tells what an unanswered call has changed.
type Failure struct {
	Counts bool          // the event is at fault: the attempt counts, and the breaker is as before
	Doubts bool          // the destination answers other events: another such failure counts
	Again  bool          // the destination was recovering
	Opened bool          // the destination was available before
	Longer bool          // a new pause has begun
	Pause  time.Duration // the rest of the pause
	Delay  time.Duration // how long the event stays in quarantine; 0 if it is not there
}

// Throttling tells what an answer that requested fewer deliveries has changed.
type Throttling struct {
	Aside  bool          // only the event is throttled: it stays in quarantine for Delay
	Delay  time.Duration // see Aside
	Begins bool          // the destination was not slowed down before
	Gap    time.Duration // between the beginnings of deliveries; 0 for none
}

// Snapshot is the state of the destination for figures.
type Snapshot struct {
	State observe.BreakerState
	// Gap is the gap between the beginnings of deliveries, 0 while the destination does not throttle.
	Gap time.Duration
	// DownSince is when the outage began; zero without an outage. NextProbe is the end of the pause, zero unless the destination is down.
	DownSince, NextProbe time.Time
}

// New returns the health of a destination that is available.
func New(cfg Config) Health { return Health{cfg: cfg} }

// Impaired reports whether the destination fails, throttles or recovers, or did a moment ago.
func (h *Health) Impaired() bool {
	return !h.breaker.closed() || h.pacer.on() || h.quarantine != nil || h.spoiled > 0
}

// Available reports whether the breaker is closed. An outage ends with its ramp.
func (h *Health) Available() bool { return h.breaker.closed() }

// Down reports whether only a probe may begin.
func (h *Health) Down() bool { return h.breaker.open() }

// Throttled reports whether there is a gap between the beginnings of deliveries.
func (h *Health) Throttled() bool { return h.pacer.on() }

// Throttles returns how many answers requested fewer deliveries.
func (h *Health) Throttles() uint64 { return h.throttles }

// Suspects reports whether an event is in quarantine.
func (h *Health) Suspects(event int64) bool { return h.quarantine.has(event) }

// Rests reports whether queued deliveries must be returned.
func (h *Health) Rests() bool { return h.breaker.open() || h.spoiled > 0 }

// Recovers reports whether each answer may let more deliveries begin.
func (h *Health) Recovers() bool { return h.breaker.ramping() || h.pacer.on() }

// Allowed returns how many of n deliveries may begin. load counts the deliveries of the lane, and ahead
// those that workers have begun or could begin.
func (h *Health) Allowed(now time.Time, n, load, ahead int) int {
	switch {
	case h.breaker.open() && (load > 0 || !h.breaker.mayProbe(now)):
		return 0
	case h.breaker.open():
		n = min(n, 1)
	case h.breaker.ramping():
		n = min(n, h.breaker.allowed-ahead)
	}
	if h.pacer.on() {
		n = min(n, h.pacer.ready(now))
	}
	return n
}

// Fair returns the free capacity that makes a claim worthwhile, at least 1: an eighth of the lane's capacity, or of the number that a ramp
// allows.
func (h *Health) Fair(capacity int) int {
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

// Waits reports whether stored deliveries, or new ones, must wait, because it is the turn of the others to be the probe.
func (h *Health) Waits(now time.Time, stored bool) bool {
	if stored {
		return h.breaker.storedWait(now)
	}
	return h.breaker.newWait(now)
}

// Next returns how long it takes until time alone changes something: the end of a pause, the end of a ramp below its
// limit, or, with n above 0, capacity for n deliveries while the destination throttles. It is 0 if that never happens.
func (h *Health) Next(now time.Time, n int) (d time.Duration) {
	if h.breaker.open() {
		d = sooner(d, h.breaker.until.Sub(now))
		if h.breaker.newFirst {
			d = sooner(d, h.breaker.turnEnds().Sub(now))
		}
	}
	if h.breaker.ramping() {
		d = sooner(d, h.breaker.checkAt.Sub(now))
	}
	if n > 0 && h.pacer.on() {
		d = sooner(d, h.pacer.wait(now, n))
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

// Take records that n deliveries begin, or that -n do not after all.
func (h *Health) Take(n int) {
	if h.pacer.on() {
		h.pacer.take(n)
	}
}

// Press records that as many deliveries are ahead as a worker could begin, or has begun: a ramp at its limit does not end by time.
func (h *Health) Press(ahead int) { h.breaker.press(ahead) }

// Held records that aggregates have held back n new deliveries. Too many of them make new deliveries wait, see Waits.
func (h *Health) Held(now time.Time, n int) { h.breaker.holds(now, n) }

// Calm ends a ramp that has been below its limit for 5 s. It reports whether the destination is available again.
func (h *Health) Calm(now time.Time) (closes bool) { return h.breaker.calm(now) }

// Answered records that the destination has answered an event, with a call that began at the given time. Heard follows, once for all
// calls that ended together.
func (h *Health) Answered(event int64, began time.Time) {
	if h.quarantine != nil {
		h.quarantine.answered(event, began)
	}
}

// Counted records that an attempt of an unanswered event was counted: the event is retried in d, or is dead.
// Heard follows.
func (h *Health) Counted(now time.Time, event int64, d time.Duration, dead bool) {
	if h.quarantine != nil {
		h.quarantine.counted(now, event, d, dead)
	}
}

// Heard records the results of calls that began at the given time or later, while running calls ran in a lane of this capacity.
func (h *Health) Heard(now, began time.Time, a Answers, capacity, running int) (c Change) {
	if h.quarantine != nil && !h.quarantine.prune(now) && !h.pacer.on() {
		h.quarantine = nil
	}
	heard := a.Answered
	if h.breaker.open() {
		heard += a.Throttled // it works
	}
	c.Ramps, c.Closes = h.breaker.answered(now, heard, capacity)
	c.Eases = h.pacer.ease(now, began, a.Answered, running)
	return c
}

// Finished records that the lane has finished n of the calls for which Throttle slowed it down. After the last one, Rests no longer
// returns true for them.
func (h *Health) Finished(n int) { h.spoiled -= n }

// Responds records that the destination has answered something else than a delivery. It reports whether the destination is available again.
func (h *Health) Responds(now time.Time, capacity int) (closes bool) {
	_, closes = h.breaker.answered(now, 1, capacity)
	return closes
}

// quarantined returns the record of events, creating it if needed; it exists while any event is in it.
func (h *Health) quarantined(now time.Time) *quarantine {
	if h.quarantine == nil {
		h.quarantine = &quarantine{pruned: now}
	}
	return h.quarantine
}

// Lost records that the destination has failed over an event; last says that one more attempt is the last one. It opens the breaker,
// unless the event itself is at fault. Otherwise the event is set aside, so that another event finds out whether the
// destination is down.
func (h *Health) Lost(now time.Time, event int64, c Call, err error, last bool) (f Failure) {
	f.Again = h.breaker.ramping()
	b := blameNobody
	if !c.Shared {
		b = h.quarantined(now).lose(now, event, c.Proof, h.breaker.open())
	}
	if b == blameStale {
		// Without an answer to any other event the destination may be down: enough for an attempt, not for the last one.
		b = blameEvent
		if last {
			b = blameAgain
		}
	}
	f.Counts, f.Doubts = b == blameEvent, b == blameMaybe
	if b < blameMaybe {
		f.Pause, f.Opened, f.Longer = h.breaker.trip(now, c.Began, paceAfter(err, h.cfg.LongestPause), b == blameAgain)
	}
	if !c.Shared && b < blameEvent {
		// An event that hangs returns when the events that it has held up are done.
		// The breaker keeps it for longer, where credentials are refused; after a reload there is another one.
		f.Delay = max(min(f.Pause, h.cfg.LongestPause), min(firstPause, h.cfg.LongestPause), c.Took)
		h.quarantine.expect(now, event, f.Delay)
	}
	return f
}

// Fault opens the breaker without blaming an event: the destination did not answer a request that began at the given time and was
// not about one event.
func (h *Health) Fault(now, began time.Time, err error) (f Failure) {
	f.Pause, f.Opened, f.Longer = h.breaker.trip(now, began, paceAfter(err, h.cfg.LongestPause), false)
	return f
}

// Unanswered records that a call that began at the given time has ended without calling the destination to the end. A probe of
// that kind has failed, and the next one comes after another pause: Unanswered reports whether it was one. tried says
// that an attempt of its event was counted before.
func (h *Health) Unanswered(now, began time.Time, tried bool) bool {
	if !h.breaker.open() {
		return false
	}
	h.breaker.trip(now, began, pace{firstPause, h.cfg.LongestPause}, tried) // new and old in turn
	return true
}

// Throttle slows the lane down, because of a call that began at the given time, or sets the event aside if only that event is
// throttled. after is the pause that the destination requests, 0 for none, and first is the first gap. Until Finished is called for a
// call that slows the lane down, queued deliveries are returned.
func (h *Health) Throttle(now time.Time, event int64, began time.Time, after, first time.Duration) (t Throttling) {
	h.throttles++
	known := h.quarantined(now)
	if n := known.throttled(event); n > 0 {
		t.Aside = true
		t.Delay = max(min(after, longestThrottle), min(backoff.Wait(h.cfg.Backoff, n), longestGap))
		known.expect(now, event, t.Delay)
	} else {
		t.Begins = h.pacer.slow(now, began, after, first)
		known.expect(now, event, max(h.pacer.gap, h.pacer.until.Sub(now)))
		h.spoiled++
	}
	t.Gap = h.pacer.gap
	return t
}

// Forget drops everything but the number of throttles, and takes the destination for available.
func (h *Health) Forget() { *h = Health{cfg: h.cfg, throttles: h.throttles} }

// Snapshot returns the state of the destination.
func (h *Health) Snapshot(now time.Time) Snapshot {
	s := Snapshot{State: h.state(now), Gap: h.pacer.gap, DownSince: h.breaker.since}
	if h.breaker.open() {
		s.NextProbe = h.breaker.until
	}
	return s
}

func (h *Health) state(now time.Time) observe.BreakerState {
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
