package health

import (
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// longestThrottle bounds the wait that a destination may request with one answer.
const longestThrottle = time.Hour

// Failed is a delivery that failed: what its lane knows of the event, of the call and of the answer.
type Failed struct {
	Event *delivery.Event
	Call
	Result

	// Attempts is how many attempts of the event count if this one does.
	Attempts int
	// Reopen means that the outcome of the call is unknown, and the destination must be opened again before another one.
	Reopen bool
	// FirstGap is the first gap between deliveries if the destination throttles.
	FirstGap time.Duration
	// Err is the error of the delivery.
	Err error
}

// Call is a failed call.
type Call struct {
	// Began is when the call began, and Took is how long it took.
	Began time.Time
	Took  time.Duration
	// Proof is when the worker's last answered call began, this call included; zero without an answered call.
	Proof time.Time
	// Shared means that the call had several events, and delivered none. Others means that it delivered others.
	Shared, Others bool
}

// Result is what an error of a handler means. The zero value is a plain error, which counts as an attempt.
type Result struct {
	Permanent   bool          // no retry helps; of an unclear refusal: once the event is known to be at fault
	Unclear     bool          // a refusal that may concern every event
	Unavailable bool          // the destination is down, or refuses our credentials
	Throttled   bool          // the destination requests fewer deliveries
	Exhausted   bool          // this machine had no file, port or memory for the call: the relay is at fault
	Late        bool          // the lane's timeout is used up
	Unanswered  bool          // the handler panicked or ended its goroutine, which says nothing about the destination
	Delay       time.Duration // the delay that the error requests; 0 for none
}

// pause returns how long the destination wants no other event; 0 if it does not say.
func (f *Failed) pause() time.Duration { return min(f.Delay, longestThrottle) }

// Next is what happens to an event after a failed delivery.
type Next uint8

const (
	// Retry means that the attempt counts, and the event is tried again after a wait.
	Retry Next = iota + 1
	// Bury means that the attempt counts and was the last one: the event becomes a dead letter.
	Bury
	// SetAside means that no attempt counts, and the event is tried again after a wait, in which others are tried.
	SetAside
	// Return means that no attempt counts, and the event stays in the table until the destination takes deliveries.
	Return
)

// Decision is what a failed delivery means for its event and for its destination.
type Decision struct {
	Next  Next
	Wait  time.Duration  // until the event is tried again, after Retry and SetAside
	Class delivery.Class // who is at fault
	Final bool           // no retry could help
	// Silent means that the attempt counts, and that the destination did not answer.
	Silent bool

	Outage
	Again     bool // the destination was recovering
	Suspected bool // the event may be at fault: the breaker is as before
	General   bool // the call says nothing about its event
	Row       int  // different events in a row were refused alike, and the destination counts as down; 0 otherwise

	Throttled bool          // the destination, or the machine, requested fewer deliveries
	Begins    bool          // it did not throttle before
	Gap       time.Duration // between the starts of deliveries; 0 for none

	Slower bool // the lane may begin fewer deliveries than before
}

// Outage is what an unanswered call changed in the breaker.
type Outage struct {
	Opened bool          // the destination was available before
	Longer bool          // a new pause began
	Pause  time.Duration // remaining pause
}

// Decide records that a delivery failed. It decides who is at fault, whether the attempt counts, and how long the event
// waits.
func (h *Health) Decide(now time.Time, f *Failed) Decision {
	switch {
	case f.Reopen:
		return h.general(now, f, delivery.ClassDestination)
	case f.Exhausted && h.breaker.open(): // the probe has not reached the destination
		return h.general(now, f, delivery.ClassRelay)
	case f.Exhausted:
		return h.throttle(now, f, delivery.ClassRelay)
	}

	isLost := f.Unavailable || f.Late && h.late(now, f)
	isFinal := f.Permanent
	switch {
	case f.Unclear || isLost:
		d, b := h.blamed(now, f)
		if !b.counts() {
			return d
		}
		isFinal = f.Permanent && (b == blameEvent || !f.Unclear)

	case f.Throttled:
		return h.throttle(now, f, delivery.ClassDestination)
	}

	d := Decision{Next: Retry, Class: delivery.ClassEvent, Final: isFinal}
	d.Silent = isLost || f.Late || f.Unanswered

	if f.Unanswered {
		d.Slower = h.unanswered(now, f)
	}

	if isFinal || h.isLast(f) {
		d.Next = Bury
		return d
	}

	d.Wait = max(f.Delay, wait(h.lane, f.Attempts))
	return d
}

// isLast reports whether no attempt follows if this one counts.
func (h *Health) isLast(f *Failed) bool { return f.Attempts >= h.lane.MaxAttempts }

// general decides about a call that says nothing about its event.
func (h *Health) general(now time.Time, f *Failed, c delivery.Class) Decision {
	o := h.Fault(now, f.Began, f.Err)
	return Decision{Next: Return, Class: c, General: true, Outage: o, Slower: o.Longer}
}

// blamed decides about an event that the destination failed over, or refused as it may refuse every event. The event is
// tried alone, so that another one shows whether the destination is down. If the blame counts, it alone is valid.
func (h *Health) blamed(now time.Time, f *Failed) (d Decision, b blame) {
	h.notesPause(now, f.Event.ID, f.pause())

	d = Decision{Next: SetAside, Class: delivery.ClassDestination, Again: h.breaker.ramping()}
	switch {
	case f.Unclear:
		b = h.refused(now, f)
	case f.Shared: // single calls will show which event is at fault
		d.Next = Return
		d.Outage = h.Fault(now, f.Began, f.Err)
		d.Slower = d.Longer
		return d, blameDestination
	default:
		b = h.lost(now, f)
	}

	one := h.quarantine.record(f.Event.ID)
	one.err = f.Err
	one.took = f.Took
	if b.counts() {
		return Decision{}, b
	}

	d.Suspected = b == blameMaybe
	if !d.Suspected {
		d.Outage = h.trip(now, f.Began, f.Err, b == blameAgain)
		d.Slower = d.Longer
		h.quarantine.pause = h.breaker.pause
	}

	// An event that hangs waits for the events that it held up. Refused credentials pause the breaker for longer than
	// the event, and a reload replaces the breaker.
	longest := h.lane.LongestPause
	d.Wait = max(min(d.Pause, longest), min(firstPause, longest), f.Took)
	h.quarantine.expect(now, f.Event.ID, d.Wait)

	switch {
	case f.Unclear && d.Suspected:
		d.Wait = max(d.Wait, wait(h.lane, f.Attempts))
	case f.Unclear:
		d.Row = h.quarantine.failed
	}

	return d, b
}

// lost returns the blame for an event that the destination failed over.
func (h *Health) lost(now time.Time, f *Failed) blame {
	q := h.quarantined(now)
	b := q.lose(now, f.Event.ID, f.Proof, h.breaker.open())
	switch {
	case b == blameStale && h.isLast(f):
		// No other event was answered, so the destination may be down. That is enough to count an attempt, but not
		// the last one.
		b = blameAgain
	case b == blameStale:
		b = blameEvent
	case b == blameDestination && h.takesOthers(now) && !q.isOutage(now, f.Took):
		b = blameMaybe
	case b < blameMaybe && q.kinds.suspects(now, f.Event.Type):
		b = blameMaybe
	}

	q.kinds.fails(now, f.Event, f.Took, h.lane.LongestPause, f.Err)
	return b
}

// takesOthers reports whether the destination took an event since the breaker last opened, or failed to close, and seems
// to fail over certain events only.
func (h *Health) takesOthers(now time.Time) bool {
	q := h.quarantine
	return !h.breaker.open() && q.taken.After(h.breaker.tripped) && !q.isFickle(now)
}

// refused returns the blame for an event that the destination refused for a reason that may concern every event.
func (h *Health) refused(now time.Time, f *Failed) blame {
	q := h.quarantined(now)
	if !f.Proof.IsZero() {
		q.takes(now) // by the same worker, just before
	}
	return q.refuses(now, f.Event.ID, &f.Call, h.isLast(f))
}

// late records a call that reached the lane's timeout. It reports whether the destination is down, because too many
// different events failed in a row. Otherwise the attempt counts.
func (h *Health) late(now time.Time, f *Failed) (down bool) {
	if h.breaker.open() {
		return true
	}

	q := h.quarantined(now)
	one := q.record(f.Event.ID)
	one.err = f.Err
	one.took = f.Took
	q.counts(one)
	q.expect(now, f.Event.ID, 0)
	q.kinds.fails(now, f.Event, f.Took, h.lane.LongestPause, f.Err)

	return q.isOutage(now, f.Took)
}

// unanswered records a call that ended before the destination could answer. It reports whether the call was a probe: the
// probe has failed, and the next one follows another pause. It says nothing about its event; a panic does.
func (h *Health) unanswered(now time.Time, f *Failed) bool {
	if !h.breaker.open() {
		return false
	}
	h.trip(now, f.Began, nil, f.Attempts > 1) // new and stored deliveries take turns
	return true
}

// throttle slows the lane down, or quarantines the event if only that event is throttled. Queued deliveries are returned
// until Finished is called for each call that slowed the lane down. A machine out of files, ports or memory has the same
// effect, with the relay at fault.
func (h *Health) throttle(now time.Time, f *Failed, c delivery.Class) Decision {
	h.throttles++
	d := Decision{Next: Return, Class: c, Throttled: true}
	known := h.quarantined(now)
	after := f.pause()

	if n := known.throttled(f.Event.ID); n > 0 {
		d.Next = SetAside
		d.Wait = max(after, min(wait(h.lane, n), longestGap))
		known.expect(now, f.Event.ID, d.Wait)
	} else {
		d.Begins = h.pacer.slow(now, f.Began, after, f.FirstGap)
		d.Slower = true
		h.notesPause(now, f.Event.ID, after)
		known.expect(now, f.Event.ID, max(h.pacer.gap, h.pacer.until.Sub(now)))
		h.spoiled++
	}

	d.Gap = h.pacer.gap
	return d
}

// Fault opens the breaker without blaming an event: a request that began at the given time, and concerned no single
// event, got no answer.
func (h *Health) Fault(now, began time.Time, err error) Outage { return h.trip(now, began, err, false) }

// trip records a fault of the destination in a call that began at the given time. known says that the destination failed
// over the same event before.
func (h *Health) trip(now, began time.Time, err error, known bool) (o Outage) {
	p := paceAfter(err, h.lane.LongestPause)
	p.doubles = p.doubles || h.quarantine != nil && h.quarantine.isFickle(now)
	o.Pause, o.Opened, o.Longer = h.breaker.trip(now, began, p, known)
	return o
}
