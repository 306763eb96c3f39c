package dispatch

import (
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
)

// What a lane does while its destination is not well, or was not a moment ago.
// A lane whose destination is well has uneasy unset and does nothing of it.

// fairPart of a lane's capacity makes a claim worth its while.
const fairPart = 8

// allowedLocked is how many deliveries may begin, whatever room there is.
func (l *lane) allowedLocked(now time.Time) int {
	n := maxQueued + l.load
	switch {
	case l.breaker.open() && (l.load > 0 || !l.breaker.mayProbe(now)):
		return 0
	case l.breaker.open():
		n = 1
	case l.breaker.ramping():
		n = l.breaker.allowed - l.aheadLocked()
	}
	if l.pacer.on() {
		n = min(n, l.pacer.room(now))
	}
	return n
}

// fairShareLocked is what makes a claim worth its while: a part of what is
// allowed, which may be very little.
func (l *lane) fairShareLocked() int {
	fair := l.capacityLocked()
	switch {
	case l.breaker.open():
		return 1
	case l.breaker.ramping():
		fair = min(fair, l.breaker.allowed)
	}
	fair /= fairPart
	if l.pacer.on() {
		fair = min(fair, int(l.pacer.burst()/2))
	}
	return max(1, fair)
}

// refuseLocked notes that somebody went away without what it wanted.
func (l *lane) refuseLocked(now time.Time) {
	l.hungry = true
	if !l.uneasy {
		return
	}
	// An engine asks for room before it knows whether there is anything: what it hands
	// over is what presses.
	if l.agg == nil && l.breaker.ramping() && l.aheadLocked() >= l.breaker.allowed {
		l.breaker.pressed = true
	}
	l.armLocked(now)
}

// wakeLocked returns what to call after unlocking: onRoom if somebody was
// refused and a fair part of the lane is free again.
func (l *lane) wakeLocked() func() {
	if !l.hungry || l.roomLocked(time.Now()) < l.fairLocked() {
		return func() {}
	}
	l.hungry = false
	return l.onRoom
}

// armLocked sets the timer for whatever time alone brings: the end of a pause,
// the end of a ramp that nobody needs, a delivery's turn. What depends on
// answers is looked at with each of them.
func (l *lane) armLocked(now time.Time) {
	if l.stopped {
		return
	}
	next := time.Duration(0)
	at := func(d time.Duration) {
		if d > 0 && (next == 0 || d < next) {
			next = d
		}
	}
	if l.breaker.open() {
		at(l.breaker.until.Sub(now))
		if l.breaker.newFirst {
			at(l.breaker.turnEnds().Sub(now))
		}
	}
	if l.breaker.ramping() {
		at(l.breaker.checkAt.Sub(now))
	}
	if l.pacer.on() && l.hungry {
		at(l.pacer.wait(now, l.fairLocked()))
	}
	switch {
	case next == 0:
	case l.timer == nil:
		l.timer = time.AfterFunc(next, l.tick)
	default:
		l.timer.Reset(next)
	}
}

// tick looks for what time has brought.
func (l *lane) tick() {
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		return
	}
	now := time.Now()
	var news []func()
	if l.breaker.calm(now) {
		l.hungry = true
		news = append(news, l.available)
	}
	call := l.wakeLocked()
	l.armLocked(now)
	l.mu.Unlock()
	for _, tell := range news {
		tell()
	}
	call()
}

// heardLocked takes the answers to calls that began at the given time, or later.
// It returns what to tell after unlocking.
func (l *lane) heardLocked(begin time.Time, jobs []*job, outs []outcome) (news []func()) {
	now := time.Now()
	throttled, answers := 0, 0
	for i := range outs {
		switch out := &outs[i]; {
		case out.throttled:
			throttled++
		case out.answered():
			answers++
			if l.suspects != nil {
				l.suspects.answered(jobs[i].event.ID, begin.Add(out.from))
			}
		case out.silent && l.suspects != nil:
			l.suspects.counted(now, jobs[i].event.ID, out)
		}
	}
	if l.suspects != nil && !l.suspects.prune(now) && !l.pacer.on() {
		l.suspects = nil
	}
	heard := answers
	if l.breaker.open() {
		heard += throttled // it works
	}
	ramps, closes := l.breaker.answered(now, heard, l.capacityLocked())
	if ramps {
		news = append(news, func() { l.log.Info("destination answers a probe; its events are let through step by step") })
	}
	if closes {
		news = append(news, l.available)
	}
	if l.pacer.ease(now, begin, answers, min(l.load+len(jobs), l.running*l.perCall())) {
		news = append(news, func() { l.log.Info("destination is not throttled any more") })
	}
	l.hungry = l.hungry || closes || l.breaker.ramping() || l.pacer.on() // what was refused may be welcome now
	l.uneasy = !l.breaker.closed() || l.pacer.on() || l.suspects != nil || l.spoiled > 0
	l.armLocked(now)
	return news
}

// heldBack returns to the pacer what it has counted for n jobs that order keeps from
// being delivered: a lane would else spend the little that it may do on writing down
// what is behind, row by row, and deliver nothing meanwhile. Their room is free, too:
// whoever was refused hears of it, also where the one held back was the only probe.
func (l *lane) heldBack(n int) {
	l.mu.Lock()
	call := l.returnLocked(n)
	l.mu.Unlock()
	call()
}

// returnLocked takes back turns of the pacer that nobody used, and returns what to
// call after unlocking.
func (l *lane) returnLocked(n int) func() {
	if l.pacer.on() {
		l.pacer.take(-n)
	}
	return l.wakeLocked()
}

func (l *lane) available() {
	l.log.Info("destination answers again")
	l.observer.Observe(delivery.Incident{Kind: delivery.IncidentAvailable, Time: time.Now(), Destination: l.name})
}

// known returns what is held against events; it is there while anything is.
func (l *lane) knownLocked(now time.Time) *suspects {
	if l.suspects == nil {
		l.suspects = &suspects{pruned: now}
	}
	return l.suspects
}

// unavailable takes that the destination has failed over an event. It opens the breaker, and
// says so once; further faults are the same news. The event is put aside, so that another one
// finds out whether the destination is down. It reports false where that is the event's own fault:
// the attempt counts.
func (l *lane) unavailable(log *slog.Logger, j *job, c *called, err *reply) (out outcome, nobodys bool) {
	out = outcome{verdict: aside, failures: j.failures(), class: delivery.ClassDestination, err: err}
	l.mu.Lock()
	now := time.Now()
	l.uneasy = true
	known, again := blameNobody, l.breaker.ramping()
	if !c.shared {
		known = l.knownLocked(now).lose(now, j.event.ID, c.proof, l.breaker.open())
	}
	var pause time.Duration
	var opened, longer bool
	if known < blameMaybe {
		pause, opened, longer = l.breaker.trip(now, c.began, l.cfg.LongestPause, known == blameAgain)
	}
	if longer {
		l.refuseLocked(now) // whatever waits for this lane is to be looked for after the pause
	}
	if c.shared {
		out.verdict = released // which of them it is turns out when they are tried one by one
	} else if known < blameEvent {
		// One that hangs comes again when what it has held up is over.
		out.delay = max(pause, min(firstPause, l.cfg.LongestPause), c.took)
		l.suspects.expect(now, j.event.ID, out.delay)
	}
	l.mu.Unlock()
	switch {
	case known == blameEvent:
		return out, false
	case known == blameMaybe:
		log.Info("the destination answers others and not this event; no attempt is counted yet", "class", delivery.ClassDestination, "retry_in", out.delay, "err", err)
	case opened:
		log.Warn("destination is unavailable; its events wait, no attempt is counted", "class", delivery.ClassDestination, "err", err)
		l.observer.Observe(delivery.Incident{Kind: delivery.IncidentUnavailable, Time: time.Now(), Destination: l.name, Err: err})
	case again && longer:
		log.Info("destination has failed again before it was well", "class", delivery.ClassDestination, "pause", pause, "err", err)
	default:
		log.Debug("destination is still unavailable", "class", delivery.ClassDestination, "pause", pause, "err", err)
	}
	return out, true
}

// throttle slows the lane down, because of a call that began at the given time,
// or puts the event aside if it is the only one that is refused so.
func (l *lane) throttle(log *slog.Logger, j *job, began time.Time, err *reply) outcome {
	out := outcome{verdict: released, failures: j.failures(), class: delivery.ClassDestination, err: err, throttled: true}
	after := err.delay
	l.mu.Lock()
	now := time.Now()
	l.throttled++
	l.uneasy = true
	known, begins := l.knownLocked(now), false
	if n := known.throttled(j.event.ID); n > 0 {
		out.verdict = aside
		out.delay = max(min(after, longestThrottle), min(spreadWait(l.cfg.Backoff, n), longestGap))
		known.expect(now, j.event.ID, out.delay)
	} else {
		begins = l.pacer.slow(now, began, after, 2*l.pace/time.Duration(max(1, l.running)))
		known.expect(now, j.event.ID, max(l.pacer.gap, l.pacer.until.Sub(now)))
		l.spoiled++
		l.refuseLocked(now)
	}
	gap := l.pacer.gap
	l.mu.Unlock()
	switch {
	case out.verdict == aside:
		log.Info("event is throttled by itself; it is put aside, no attempt is counted", "class", delivery.ClassDestination, "retry_in", out.delay, "err", err)
	case begins:
		log.Warn("destination throttles; its lane is slowed down, no attempt is counted", "class", delivery.ClassDestination, "gap", gap, "wait", after, "err", err)
	default:
		log.Debug("destination still throttles", "class", delivery.ClassDestination, "gap", gap, "wait", after, "err", err)
	}
	return out
}

// spoiled counts the answers for which what is queued is given back.
func spoiled(outs []outcome) (n int) {
	for i := range outs {
		if outs[i].throttled && outs[i].verdict == released {
			n++
		}
	}
	return n
}

// halted reports whether a worker is to put back what it has not begun with.
func (l *lane) halted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.restingLocked()
}

// stateLocked is what the figures say.
func (l *lane) stateLocked(now time.Time) observe.BreakerState {
	switch {
	case l.breaker.open() && l.breaker.mayProbe(now):
		return observe.BreakerProbing
	case l.breaker.open():
		return observe.BreakerOpen
	case l.breaker.ramping():
		return observe.BreakerRamping
	case l.pacer.on():
		return observe.BreakerThrottled
	default:
		return observe.BreakerClosed
	}
}
