package health

import (
	"cmp"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/backoff"
	"github.com/notifyd/notifyd/observe"
)

// LongestPause is the default of [delivery.Lane].LongestPause.
const LongestPause = 30 * time.Second

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
// false, the owner may skip the answers of the destination: only Lost, Fault and Throttle change the state then.
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

// Asked records that the answer to an event requested a pause.
func (h *Health) Asked(now time.Time, event int64, after time.Duration) {
	until := now.Add(min(after, longestThrottle))
	if after > 0 && until.After(h.asked.until.Add(sameAsked)) {
		h.asked = asked{until, event}
	}
}

// Call is a failed call.
type Call struct {
	// Began is when the call began, and Took is how long it took.
	Began time.Time
	Took  time.Duration
	// Proof is when the worker's last answered call began, this call included; zero without an answered call.
	Proof time.Time
	// Type is the type of the event.
	Type string
	// Shared means that the call had several events, and delivered none. Others means that it delivered others.
	Shared, Others bool
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

// Failure tells what an unanswered call changed.
type Failure struct {
	Counts    bool          // the event is at fault: the attempt counts, and the breaker is as before
	Proven    bool          // the destination took other events, and no retry helps an event that it refuses for good
	Suspected bool          // the event may be at fault: the breaker is as before, and no attempt counts
	Row       int           // different events that failed since the destination took one
	Again     bool          // the destination was recovering
	Opened    bool          // the destination was available before
	Longer    bool          // a new pause began
	Pause     time.Duration // remaining pause
	Delay     time.Duration // how long the event stays in quarantine; 0 if it is not in quarantine
}

// Throttling tells what an answer that requested fewer deliveries changed.
type Throttling struct {
	Quarantined bool          // only the event is throttled: it stays in quarantine for Delay
	Delay       time.Duration // see Quarantined
	Begins      bool          // the destination did not throttle before
	Gap         time.Duration // between the starts of deliveries; 0 for none
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

// Lost records that the destination failed over an event; last means that its next attempt is the last one. Lost opens
// the breaker, unless the event is at fault or may be. It quarantines the event, so that another event shows whether
// the destination is down.
func (h *Health) Lost(now time.Time, event int64, c Call, err error, last bool) (f Failure) {
	if c.Shared {
		f.Again = h.breaker.ramping()
		f.Pause, f.Opened, f.Longer = h.breaker.trip(now, c.Began, h.pace(now, err), false)
		return f
	}

	q := h.quarantined(now)
	b := q.lose(now, event, c.Proof, h.breaker.open())
	switch {
	case b == blameStale && last:
		// No other event was answered, so the destination may be down. That is enough to count an attempt, but not
		// the last one.
		b = blameAgain
	case b == blameStale:
		b = blameEvent
	case b == blameDestination && h.takesOthers(now) && !q.isOutage(now, c.Took):
		b = blameMaybe
	case b < blameMaybe && q.kinds.suspects(now, c.Type):
		b = blameMaybe
	}

	q.kinds.fails(now, event, c.Type, c.Took, h.lane.LongestPause, err)
	f = h.blames(now, event, c, err, b)
	f.Counts = b == blameEvent

	return f
}

// takesOthers reports whether the destination took an event since the breaker last opened, or failed to close, and seems
// to fail over certain events only.
func (h *Health) takesOthers(now time.Time) bool {
	q := h.quarantine
	return !h.breaker.open() && q.taken.After(h.breaker.tripped) && !q.isFickle(now)
}

// pace returns the pace of the breaker after a fault.
func (h *Health) pace(now time.Time, err error) pace {
	p := paceAfter(err, h.lane.LongestPause)
	p.doubles = p.doubles || h.quarantine != nil && h.quarantine.isFickle(now)
	return p
}

// Late records that a call reached the lane's timeout. It reports whether the destination is down, because too many
// different events failed in a row: Lost follows. Otherwise the attempt counts.
func (h *Health) Late(now time.Time, event int64, c Call, err error) (down bool) {
	if h.breaker.open() {
		return true
	}

	q := h.quarantined(now)
	one := q.record(event)
	one.err = err
	one.took = c.Took
	q.counts(one)
	q.expect(now, event, 0)
	q.kinds.fails(now, event, c.Type, c.Took, h.lane.LongestPause, err)

	return q.isOutage(now, c.Took)
}

// Refused records that the destination refused an event for a reason that may concern every event; last means that the
// event has no attempt after this one. Refused opens the breaker if too many different events failed in a row.
func (h *Health) Refused(now time.Time, event int64, c Call, err error, last bool) (f Failure) {
	q := h.quarantined(now)
	if !c.Proof.IsZero() {
		q.takes(now) // by the same worker, just before
	}

	b := q.refuses(now, event, &c, last)
	f = h.blames(now, event, c, err, b)
	f.Proven = b == blameEvent
	f.Counts = b == blameEvent || b == blameStale
	return f
}

// blames quarantines an event, unless its attempt counts, and opens the breaker if the destination may be down.
func (h *Health) blames(now time.Time, event int64, c Call, err error, b blame) (f Failure) {
	f.Row = h.quarantine.failed
	one := h.quarantine.record(event)
	one.err = err
	one.took = c.Took
	f.Again = h.breaker.ramping()
	f.Suspected = b == blameMaybe

	if b < blameMaybe {
		f.Pause, f.Opened, f.Longer = h.breaker.trip(now, c.Began, h.pace(now, err), b == blameAgain)
		h.quarantine.pause = h.breaker.pause
	}

	if b <= blameMaybe {
		// An event that hangs waits for the events that it held up. Refused credentials pause the breaker for longer
		// than the event, and a reload replaces the breaker.
		f.Delay = max(min(f.Pause, h.lane.LongestPause), min(firstPause, h.lane.LongestPause), c.Took)
		h.quarantine.expect(now, event, f.Delay)
	}

	return f
}

// Fault opens the breaker without blaming an event: a request that began at the given time, and concerned no single
// event, got no answer.
func (h *Health) Fault(now, began time.Time, err error) (f Failure) {
	f.Pause, f.Opened, f.Longer = h.breaker.trip(now, began, h.pace(now, err), false)
	return f
}

// Unanswered records that a call that began at the given time ended before the destination could answer. It reports
// whether the call was a probe: the probe has failed, and the next one follows another pause. tried means that an
// earlier attempt of the event was counted.
func (h *Health) Unanswered(now, began time.Time, tried bool) bool {
	if !h.breaker.open() {
		return false
	}
	h.breaker.trip(now, began, h.pace(now, nil), tried) // new and stored deliveries take turns
	return true
}

// Throttle slows the lane down after a call that began at the given time, or quarantines the event if only that event
// is throttled. after is the pause that the destination requests, 0 for none, and first is the first gap. Queued
// deliveries are returned until Finished is called for each call that slowed the lane down.
func (h *Health) Throttle(now time.Time, event int64, began time.Time, after, first time.Duration) (t Throttling) {
	h.throttles++

	known := h.quarantined(now)
	if n := known.throttled(event); n > 0 {
		t.Quarantined = true
		t.Delay = max(min(after, longestThrottle), min(backoff.Wait(h.lane, n), longestGap))
		known.expect(now, event, t.Delay)
	} else {
		t.Begins = h.pacer.slow(now, began, after, first)
		h.Asked(now, event, after)
		known.expect(now, event, max(h.pacer.gap, h.pacer.until.Sub(now)))
		h.spoiled++
	}

	t.Gap = h.pacer.gap
	return t
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
