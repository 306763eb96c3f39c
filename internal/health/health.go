package health

import (
	"cmp"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
)

const (
	// Candidates is how many deliveries a lane takes to choose a probe among them. A larger number finds a good event
	// behind more bad ones, and costs more reads.
	Candidates = 256
	// chosenRamp is the largest number of deliveries in flight in a ramp for which the lane still chooses.
	chosenRamp = 8
)

// worthwhilePart is the divisor of a lane's capacity that makes a claim worthwhile.
const worthwhilePart = 8

// Health tracks a destination that fails, throttles or recovers. Its owner's lock guards it. While Impaired returns
// false, the owner may skip the answers of the destination: only Decide and Fault change the state then.
type Health struct {
	lane       *delivery.Lane
	breaker    breaker
	pacer      pacer
	quarantine *quarantine // nil unless the destination recently failed over events or throttled them
	spoiled    int         // throttled calls that are not finished; until then queued deliveries are returned
	throttles  uint64      // answers that requested fewer deliveries
	asked      asked
}

// asked is the pause that an answer of the destination requested last, as for Retry-After. It is for people: pacer and
// breaker decide what begins.
type asked struct {
	until time.Time
	event int64 // whose answer it was
}

// sameAsked is how much a repeated request for a pause may exceed the known one, because its duration is rounded. A
// handler repeats the request while it sends nothing.
const sameAsked = time.Second

// notesPause records that the answer to an event requested a pause.
func (h *Health) notesPause(now time.Time, event int64, after time.Duration) {
	until := now.Add(after)
	if after > 0 && until.After(h.asked.until.Add(sameAsked)) {
		h.asked = asked{until, event}
	}
}

// Answers counts the results of calls that ended together.
type Answers struct {
	// Answered counts the answered events. Throttled and Refused count events with an answer that shows only that the
	// destination works: it throttled them, or it refused them without an outage.
	Answered, Throttled, Refused int
}

// Change tells what a set of answers changed.
type Change struct {
	Ramps       bool // the destination answers a probe
	Closes      bool // the destination is available again
	Unthrottled bool // the destination no longer throttles

	// Answered is when the destination last answered a probe, of an outage that Closes ends.
	Answered time.Time
}

// Snapshot is the state of the destination for the figures.
type Snapshot struct {
	State observe.BreakerState
	// Gap is the gap between the starts of deliveries; 0 while the destination does not throttle.
	Gap time.Duration
	// DownSince is when the outage began; zero without an outage. NextProbe is the end of the pause, zero unless the destination is down.
	DownSince, NextProbe time.Time
	// AskedUntil is the end of the pause that the destination requested by its answer to the event AskedBy; zero without
	// one, and after it.
	AskedUntil time.Time
	AskedBy    int64
}

// New returns the health of an available destination. The lane has its defaults: Retry, Backoff and LongestPause say how long events
// and probes wait.
func New(lane *delivery.Lane) Health { return Health{lane: lane} }

// Impaired reports whether the destination fails, throttles or recovers, or did a moment ago.
func (h *Health) Impaired() bool {
	fails := !h.breaker.closed() || h.quarantine != nil
	return fails || h.pacer.on() || h.spoiled > 0
}

// Available reports whether the breaker is closed. The end of a ramp ends an outage.
func (h *Health) Available() bool { return h.breaker.closed() }

// Down reports whether only a probe may begin.
func (h *Health) Down() bool { return h.breaker.open() }

// Throttled reports whether there is a gap between the starts of deliveries.
func (h *Health) Throttled() bool { return h.pacer.on() }

// Throttles counts the answers that requested fewer deliveries.
func (h *Health) Throttles() uint64 { return h.throttles }

// Postponed returns how long an event waits while others are probes, and its last failure. It reports false for events
// that are not in quarantine.
func (h *Health) Postponed(now time.Time, event int64) (delay time.Duration, why error, ok bool) {
	if h.quarantine == nil {
		return 0, nil, false
	}

	one := h.quarantine.events[event]
	if one == nil || one.err == nil {
		return 0, nil, false
	}

	delay = max(h.breaker.until.Sub(now), min(firstPause, h.lane.LongestPause))
	h.quarantine.expect(now, event, delay)

	return delay, one.err, true
}

// Holds returns how long an event waits because its type is suspected, and why. It reports false for others.
func (h *Health) Holds(now time.Time, name string) (delay time.Duration, why error, ok bool) {
	if h.quarantine == nil {
		return 0, nil, false
	}
	return h.quarantine.kinds.holds(now, name)
}

// Slow reports whether the last call for an event failed slowly.
func (h *Health) Slow(event int64) bool { return h.quarantine != nil && h.quarantine.isSlow(event) }

// Compare orders two candidates for a probe, the better one first. An event of a type without failures comes before
// one of a type with failures, and both before events in quarantine. Of these the longest untried one comes first.
func (h *Health) Compare(a, b *delivery.Event) int {
	q := h.quarantine
	if q == nil {
		return 0
	}
	if byPromise := cmp.Compare(q.promise(b), q.promise(a)); byPromise != 0 {
		return byPromise
	}

	return q.triedAt(a.ID).Compare(q.triedAt(b.ID))
}

// Chooses returns how many deliveries may begin next to the begun ones, for a lane that must choose among more. It
// reports false if the lane begins all deliveries in their order.
func (h *Health) Chooses(begun int) (n int, ok bool) {
	switch {
	case h.breaker.open():
		return max(0, 1-begun), true
	case h.breaker.ramping() && h.breaker.allowed <= chosenRamp:
		return max(0, h.breaker.allowed-begun), true
	default:
		return 0, false
	}
}

// Begins records that a call for one event in quarantine begins.
func (h *Health) Begins(event int64) {
	if h.quarantine != nil {
		h.quarantine.begins(event)
	}
}

// Quarantined reports whether an event is in quarantine.
func (h *Health) Quarantined(event int64) bool { return h.quarantine.has(event) }

// Rests reports whether queued deliveries must be returned.
func (h *Health) Rests() bool { return h.breaker.open() || h.spoiled > 0 }

// Recovers reports whether each answer may let more deliveries begin.
func (h *Health) Recovers() bool { return h.breaker.ramping() || h.pacer.on() }

// Allowed returns how many of n deliveries may begin. load counts the deliveries of the lane, and ahead those that
// workers have begun or could begin.
func (h *Health) Allowed(now time.Time, n, load, ahead int) int {
	switch {
	case h.breaker.open() && (load > 0 || !h.breaker.mayProbe(now)):
		return 0
	case h.breaker.open():
		n = min(n, Candidates)
	case h.breaker.ramping() && h.breaker.allowed <= chosenRamp && ahead < h.breaker.allowed:
		n = min(n, Candidates)
	case h.breaker.ramping():
		n = min(n, h.breaker.allowed-ahead)
	}

	if h.pacer.on() {
		n = min(n, h.pacer.ready(now))
	}

	return n
}

// Worthwhile returns the free capacity that makes a claim worthwhile, at least 1: an eighth of the lane's capacity,
// or of the number that a ramp allows.
func (h *Health) Worthwhile(capacity int) int {
	switch {
	case h.breaker.open():
		return 1
	case h.breaker.ramping():
		capacity = min(capacity, h.breaker.allowed)
	}

	n := capacity / worthwhilePart
	if h.pacer.on() {
		n = min(n, int(h.pacer.burst()/2))
	}

	return max(1, n)
}

// Waits reports whether stored deliveries, or new ones, must wait, because one of the others must be the probe.
func (h *Health) Waits(now time.Time, stored bool) bool {
	if stored {
		return h.breaker.storedWait(now)
	}
	return h.breaker.newWait(now)
}

// Next returns how long until time alone changes the state; 0 for never. Such changes are the end of a pause, and the
// end of a ramp below its limit. With n above 0, capacity for n deliveries of a throttled lane is another one.
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

// sooner returns the shorter of two durations, and ignores those not above 0.
func sooner(a, b time.Duration) time.Duration {
	if b > 0 && (a == 0 || b < a) {
		return b
	}
	return a
}

// Take records that n deliveries begin. A negative n takes back earlier ones.
func (h *Health) Take(n int) {
	if h.pacer.on() {
		h.pacer.take(n)
	}
}

// Press records how many deliveries workers have begun or could begin: time does not end a ramp at its limit.
func (h *Health) Press(ahead int) { h.breaker.press(ahead) }

// Held records that aggregates held back n new deliveries. Too many make new deliveries wait: see Waits.
func (h *Health) Held(now time.Time, n int) { h.breaker.holds(now, n) }

// Calm ends a ramp that was below its limit for 5 s.
func (h *Health) Calm(now time.Time) Change {
	return Change{Closes: h.breaker.calm(now), Answered: h.breaker.ramped}
}

// Answered records that the destination answered an event of a type, in a call that began at the given time; taken means
// that it took the event. Record follows, once for all calls that ended together.
func (h *Health) Answered(now time.Time, event int64, name string, began time.Time, taken bool) {
	if h.quarantine != nil {
		h.quarantine.answered(now, event, name, began, taken)
	}
}

// Counted records that an attempt of an unanswered event was counted: the event is retried in d, or is dead. Record
// follows.
func (h *Health) Counted(now time.Time, event int64, d time.Duration, dead bool) {
	if h.quarantine != nil {
		h.quarantine.counted(now, event, d, dead)
	}
}

// Record records the results of calls. All began at the given time or later; running calls were in flight, in a lane
// of the given capacity.
func (h *Health) Record(now, began time.Time, a Answers, capacity, running int) (c Change) {
	mayEnd := h.quarantine != nil && h.breaker.closed()
	if mayEnd && !h.quarantine.prune(now) && !h.pacer.on() {
		h.quarantine = nil
	}

	answers := a.Answered
	if h.breaker.open() {
		answers += a.Throttled
	}

	isAlike := h.quarantine != nil && h.quarantine.failed >= shortRow
	if h.breaker.open() && !isAlike {
		answers += a.Refused
	}

	c.Ramps, c.Closes = h.breaker.answered(now, answers, capacity)
	c.Answered = h.breaker.ramped
	c.Unthrottled = h.pacer.speedUp(now, began, a.Answered, running)

	return c
}

// Finished records that the lane finished n of the calls for which Throttle slowed it down. Rests ignores finished
// calls.
func (h *Health) Finished(n int) { h.spoiled -= n }

// Responds records that the destination answered a request other than a delivery.
func (h *Health) Responds(now time.Time, capacity int) (c Change) {
	c.Ramps, c.Closes = h.breaker.answered(now, 1, capacity)
	c.Answered = h.breaker.ramped

	return c
}

// quarantined returns the quarantine, and creates it if necessary. It exists while it holds events.
func (h *Health) quarantined(now time.Time) *quarantine {
	if h.quarantine == nil {
		h.quarantine = &quarantine{pruned: now, row: 1, rowFrom: now}
	}
	return h.quarantine
}

// Forget resets the state to an available destination, except for the number of throttles.
func (h *Health) Forget() { *h = Health{lane: h.lane, throttles: h.throttles} }

// Snapshot returns the state of the destination.
func (h *Health) Snapshot(now time.Time) Snapshot {
	s := Snapshot{State: h.state(now), Gap: h.pacer.gap, DownSince: h.breaker.since}
	if h.breaker.open() {
		s.NextProbe = h.breaker.until
	}

	waits := h.pacer.on() || !h.breaker.closed()
	if waits && now.Before(h.asked.until) {
		s.AskedUntil = h.asked.until
		s.AskedBy = h.asked.event
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
