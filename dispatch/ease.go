package dispatch

import (
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
)

// The behaviour of a lane whose destination is not well, or was not a moment ago. A lane whose
// destination is well has ease.on unset and skips all of it.

// ease is the state of a lane for a destination that is not well. The lane's lock guards it.
type ease struct {
	lane     *lane
	breaker  breaker
	pacer    pacer
	suspects *suspects   // nil unless the destination has recently failed over events, or throttled them
	spoiled  int         // calls that were throttled and are not finished: queued jobs are given back
	on       bool        // any of the four is at work
	refusals uint64      // answers that requested fewer deliveries
	timer    *time.Timer // looks for room again; nil before the first fault
}

// fairPart is the part of a lane's capacity that makes a claim worthwhile: one in so many.
const fairPart = 8

// allowedLocked returns how many deliveries may begin, whatever room there is.
func (e *ease) allowedLocked(now time.Time) int {
	n := maxQueued + e.lane.load
	switch {
	case e.breaker.open() && (e.lane.load > 0 || !e.breaker.mayProbe(now)):
		return 0
	case e.breaker.open():
		n = 1
	case e.breaker.ramping():
		n = e.breaker.allowed - e.lane.aheadLocked()
	}
	if e.pacer.on() {
		n = min(n, e.pacer.room(now))
	}
	return n
}

// fairShareLocked returns the room that makes a claim worthwhile: a part of the allowed number,
// which may be very little.
func (e *ease) fairShareLocked() int {
	fair := e.lane.capacityLocked()
	switch {
	case e.breaker.open():
		return 1
	case e.breaker.ramping():
		fair = min(fair, e.breaker.allowed)
	}
	fair /= fairPart
	if e.pacer.on() {
		fair = min(fair, int(e.pacer.burst()/2))
	}
	return max(1, fair)
}

// refuseLocked notes that an engine was refused the room that it requested.
func (e *ease) refuseLocked(now time.Time) {
	e.lane.hungry = true
	if !e.on {
		if e.lane.limiter != nil {
			e.armLocked(now)
		}
		return
	}
	// An engine requests room before it knows whether there are events: only handed-over deliveries
	// count as pressure.
	if e.lane.agg == nil && e.breaker.ramping() && e.lane.aheadLocked() >= e.breaker.allowed {
		e.breaker.pressed = true
	}
	e.armLocked(now)
}

// wakeLocked returns the function to call after unlocking: onRoom if an engine was refused and a
// fair part of the lane is free again.
func (e *ease) wakeLocked() func() {
	if !e.lane.hungry || e.lane.roomLocked(time.Now()) < e.lane.fairLocked() {
		return func() {}
	}
	e.lane.hungry = false
	return e.lane.onRoom
}

// armLocked sets the timer for changes that time alone brings: the end of a pause, the end of a
// ramp below its limit, a delivery's turn. Changes that depend on answers are checked with each
// answer.
func (e *ease) armLocked(now time.Time) {
	if e.lane.stopped {
		return
	}
	next := time.Duration(0)
	at := func(d time.Duration) {
		if d > 0 && (next == 0 || d < next) {
			next = d
		}
	}
	if e.breaker.open() {
		at(e.breaker.until.Sub(now))
		if e.breaker.newFirst {
			at(e.breaker.turnEnds().Sub(now))
		}
	}
	if e.breaker.ramping() {
		at(e.breaker.checkAt.Sub(now))
	}
	if e.pacer.on() && e.lane.hungry {
		at(e.pacer.wait(now, e.lane.fairLocked()))
	}
	if e.lane.limiter != nil && e.lane.hungry {
		at(e.lane.limiter.Wait(now))
	}
	switch {
	case next == 0:
	case e.timer == nil:
		e.timer = time.AfterFunc(next, e.tick)
	default:
		e.timer.Reset(next)
	}
}

// tick handles the changes that time has brought.
func (e *ease) tick() {
	e.lane.mu.Lock()
	if e.lane.stopped {
		e.lane.mu.Unlock()
		return
	}
	now := time.Now()
	var news []func()
	if e.breaker.calm(now) {
		e.lane.hungry = true
		news = append(news, e.available)
	}
	call := e.wakeLocked()
	e.armLocked(now)
	e.lane.mu.Unlock()
	for _, tell := range news {
		tell()
	}
	call()
}

// heardLocked records the answers to calls that began at the given time, or later. It returns the
// reports to make after unlocking.
func (e *ease) heardLocked(begin time.Time, jobs []*job, outs []outcome) (news []func()) {
	now := time.Now()
	throttled, answers := 0, 0
	for i := range outs {
		switch out := &outs[i]; {
		case out.throttled:
			throttled++
		case out.answered():
			answers++
			if e.suspects != nil {
				e.suspects.answered(jobs[i].event.ID, begin.Add(out.from))
			}
		case out.silent && e.suspects != nil:
			e.suspects.counted(now, jobs[i].event.ID, out)
		}
	}
	if e.suspects != nil && !e.suspects.prune(now) && !e.pacer.on() {
		e.suspects = nil
	}
	heard := answers
	if e.breaker.open() {
		heard += throttled // it works
	}
	ramps, closes := e.breaker.answered(now, heard, e.lane.capacityLocked())
	if ramps {
		news = append(news, func() { e.lane.log.Info("destination answers a probe; its events are let through step by step") })
	}
	if closes {
		news = append(news, e.available)
	}
	if e.pacer.ease(now, begin, answers, min(e.lane.load+len(jobs), e.lane.running*e.lane.perCall())) {
		news = append(news, func() { e.lane.log.Info("destination is not throttled any more") })
	}
	e.lane.hungry = e.lane.hungry || closes || e.breaker.ramping() || e.pacer.on() // a refused request may fit now
	e.on = !e.breaker.closed() || e.pacer.on() || e.suspects != nil || e.spoiled > 0
	e.armLocked(now)
	return news
}

// heldBack returns to the pacer its tokens of n jobs that order keeps from being delivered:
// otherwise a lane would spend its small budget on writing down the events behind a failure, row by
// row, and deliver nothing meanwhile. Their room is free, too, and a refused engine is notified,
// also where the job that was held back was the only probe.
func (e *ease) heldBack(n int) {
	e.lane.mu.Lock()
	call := e.returnLocked(n)
	e.lane.mu.Unlock()
	call()
}

// returnLocked returns unused tokens to the pacer, and returns the function to call after
// unlocking.
func (e *ease) returnLocked(n int) func() {
	if e.pacer.on() {
		e.pacer.take(-n)
	}
	return e.wakeLocked()
}

// forgetLocked makes the destination well, as far as the lane knows.
func (e *ease) forgetLocked() {
	if e.timer != nil {
		e.timer.Stop()
	}
	// The lane stays as it is: a report that is under way reads it without the lock.
	e.breaker, e.pacer, e.suspects, e.spoiled, e.on, e.timer = breaker{}, pacer{}, nil, 0, false, nil
}

func (e *ease) available() {
	e.lane.log.Info("destination answers again")
	e.lane.observer.Observe(delivery.Incident{Kind: delivery.IncidentAvailable, Time: time.Now(), Destination: e.lane.dest.Name})
}

// knownLocked returns the record of suspects, creating it if needed; it exists while any event is
// in it.
func (e *ease) knownLocked(now time.Time) *suspects {
	if e.suspects == nil {
		e.suspects = &suspects{pruned: now}
	}
	return e.suspects
}

// unavailable records that the destination has failed over an event. It opens the breaker, and
// reports that once; further faults are no news. The event is put aside, so that another event
// finds out whether the destination is down. unavailable reports false where the event itself is at
// fault: the attempt counts.
func (e *ease) unavailable(log *slog.Logger, j *job, c *called, err *reply) (out outcome, nobodys bool) {
	out = outcome{verdict: aside, failures: j.failures(), class: delivery.ClassDestination, err: err}
	e.lane.mu.Lock()
	now := time.Now()
	e.on = true
	known, again := blameNobody, e.breaker.ramping()
	if !c.shared {
		known = e.knownLocked(now).lose(now, j.event.ID, c.proof, e.breaker.open())
	}
	if known == blameStale {
		// Without an answer to any other event the destination may be down: enough for an attempt, not for the last one.
		known = blameEvent
		if j.failures()+1 >= e.lane.dest.MaxAttempts {
			known = blameAgain
		}
	}
	var pause time.Duration
	var opened, longer bool
	if known < blameMaybe {
		pause, opened, longer = e.breaker.trip(now, c.began, paceAfter(err, e.lane.dest.LongestPause), known == blameAgain)
	}
	if longer {
		e.refuseLocked(now) // the events of this lane are to be looked for after the pause
	}
	if c.shared {
		out.verdict = released // single calls will show which event is at fault
	} else if known < blameEvent {
		// An event that hangs returns when the events that it has held up are done.
		// The breaker keeps it for longer, where credentials are refused; after a reload there is another one.
		out.delay = max(min(pause, e.lane.dest.LongestPause), min(firstPause, e.lane.dest.LongestPause), c.took)
		e.suspects.expect(now, j.event.ID, out.delay)
	}
	e.lane.mu.Unlock()
	switch {
	case known == blameEvent:
		return out, false
	case known == blameMaybe:
		log.Info("the destination answers others and not this event; no attempt is counted yet", "class", delivery.ClassDestination, "retry_in", out.delay, "err", err)
	case opened:
		log.Warn("destination is unavailable; its events wait, no attempt is counted", "class", delivery.ClassDestination, "err", err)
		e.lane.observer.Observe(delivery.Incident{Kind: delivery.IncidentUnavailable, Time: time.Now(), Destination: e.lane.dest.Name, Err: err})
	case again && longer:
		log.Info("destination has failed again before it was well", "class", delivery.ClassDestination, "pause", pause, "err", err)
	default:
		log.Debug("destination is still unavailable", "class", delivery.ClassDestination, "pause", pause, "err", err)
	}
	return out, true
}

// fault opens the breaker without blaming an event: the destination did not answer what was asked
// at the given time, by a call for all its events or by none. With news it is reported in any case.
func (e *ease) fault(began time.Time, err error, news bool) (pause time.Duration) {
	e.lane.mu.Lock()
	now := time.Now()
	e.on = true
	pause, opened, longer := e.breaker.trip(now, began, paceAfter(err, e.lane.dest.LongestPause), false)
	if longer {
		e.refuseLocked(now)
	}
	e.lane.mu.Unlock()
	if opened || news {
		e.lane.log.Warn("destination is unavailable; its events wait, no attempt is counted", "class", delivery.ClassDestination, "err", err)
		e.lane.observer.Observe(delivery.Incident{Kind: delivery.IncidentUnavailable, Time: now, Destination: e.lane.dest.Name, Err: err})
		return pause
	}
	e.lane.log.Debug("destination is still unavailable", "class", delivery.ClassDestination, "pause", pause, "err", err)
	return pause
}

// answers lets deliveries through again, step by step.
func (e *ease) answers() {
	e.lane.mu.Lock()
	now := time.Now()
	_, closes := e.breaker.answered(now, 1, e.lane.capacityLocked())
	e.on = !e.breaker.closed() || e.pacer.on() || e.suspects != nil || e.spoiled > 0
	e.lane.hungry = true
	e.armLocked(now)
	call := e.wakeLocked()
	e.lane.mu.Unlock()
	if closes {
		e.available()
	}
	call()
}

// unanswered records that a call that began at the given time has ended without calling the destination to the end. A
// probe of that kind has failed, and the next one comes after another pause; a lane that is not down takes no notice.
func (e *ease) unanswered(j *job, began time.Time) {
	e.lane.mu.Lock()
	defer e.lane.mu.Unlock()
	if now := time.Now(); e.breaker.open() {
		e.breaker.trip(now, began, pace{firstPause, e.lane.dest.LongestPause}, j.failures() > 0) // new and old in turn
		e.refuseLocked(now)
	}
}

// throttle slows the lane down, because of a call that began at the given time, or puts the event
// aside if only that event is throttled. A machine that has run out of files, ports or memory throttles like a
// destination, and the fault is the relay's.
func (e *ease) throttle(log *slog.Logger, j *job, began time.Time, err *reply) outcome {
	out := outcome{verdict: released, failures: j.failures(), class: delivery.ClassDestination, err: err, throttled: true}
	if err.exhausted {
		out.class = delivery.ClassOurs
	}
	after := err.delay
	e.lane.mu.Lock()
	now := time.Now()
	e.refusals++
	e.on = true
	known, begins := e.knownLocked(now), false
	if n := known.throttled(j.event.ID); n > 0 {
		out.verdict = aside
		out.delay = max(min(after, longestThrottle), min(spreadWait(e.lane.dest.Backoff, n), longestGap))
		known.expect(now, j.event.ID, out.delay)
	} else {
		begins = e.pacer.slow(now, began, after, 2*e.lane.tempo.pace/time.Duration(max(1, e.lane.running)))
		known.expect(now, j.event.ID, max(e.pacer.gap, e.pacer.until.Sub(now)))
		e.spoiled++
		e.refuseLocked(now)
	}
	gap := e.pacer.gap
	e.lane.mu.Unlock()
	switch {
	case out.verdict == aside:
		log.Info("event is throttled by itself; it is put aside, no attempt is counted", "class", out.class, "retry_in", out.delay, "err", err)
	case begins && err.exhausted:
		log.Warn("the machine has no room for more calls; the lane is slowed down, no attempt is counted", "class", out.class, "gap", gap, "err", err)
	case begins:
		log.Warn("destination throttles; its lane is slowed down, no attempt is counted", "class", delivery.ClassDestination, "gap", gap, "wait", after, "err", err)
	default:
		log.Debug("destination still throttles", "class", out.class, "gap", gap, "wait", after, "err", err)
	}
	return out
}

// spoiled counts the answers that cause queued jobs to be given back.
func spoiled(outs []outcome) (n int) {
	for i := range outs {
		if outs[i].throttled && outs[i].verdict == released {
			n++
		}
	}
	return n
}

// halted reports whether a worker must put back the jobs that it has not begun.
func (e *ease) halted() bool {
	e.lane.mu.Lock()
	defer e.lane.mu.Unlock()
	return e.lane.restingLocked()
}

// stateLocked returns the state for the figures.
func (e *ease) stateLocked(now time.Time) observe.BreakerState {
	switch {
	case e.breaker.open() && e.breaker.mayProbe(now):
		return observe.BreakerProbing
	case e.breaker.open():
		return observe.BreakerOpen
	case e.breaker.ramping():
		return observe.BreakerRamping
	case e.pacer.on():
		return observe.BreakerThrottled
	default:
		return observe.BreakerClosed
	}
}
