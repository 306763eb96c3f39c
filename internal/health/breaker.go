package health

import (
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/login"
	"github.com/notifyd/notifyd/internal/sleep"
)

const (
	// firstPause is the pause of a lane after the first failure of its destination.
	firstPause = 100 * time.Millisecond
	// The pause before a probe is a share of the time without an answer: a small one at first, so that one good event
	// among many bad ones is found soon, and a larger one of the time beyond quickTime.
	quickShare  = 32
	quickTime   = 20 * time.Second
	outageShare = 8
	// newProbes is how many new deliveries are probes for each stored one. A stored one has failed, so it is a good event
	// less often.
	newProbes = 3
	// rampCalm ends a ramp that is never at its limit: with fewer events than the ramp allows, the ramp would not
	// end.
	rampCalm = 5 * time.Second
	// turnGrace is how long new deliveries have to arrive when a new one must be the probe. An engine finds available
	// events within milliseconds.
	turnGrace = 100 * time.Millisecond
	// maxHeld bounds the new deliveries that their aggregates hold back during the search for a probe: each of them
	// becomes a row.
	maxHeld = 64
	// storedGrace is how long the breaker waits for stored deliveries after the pause. None may be left: another
	// relay may have delivered them, or a person removed them.
	storedGrace = 5 * time.Second
)

// breaker protects a destination that is down from a lane. It opens with the destination's first fault, and allows
// one delivery at a time after a pause. The pause is a share of the time since the destination last answered, so that
// few bad events in front of good ones do not delay these for long. While our credentials are refused, or the
// destination takes events over which it failed before, the pause doubles with every fault and is halved by every
// answer: such a destination is not hammered.
//
// The first answer starts a ramp: the allowed number of deliveries in flight doubles with each round of answers. The
// breaker closes when the ramp reaches the lane's capacity.
//
// The zero value is closed.
type breaker struct {
	since    time.Time     // when it opened; zero while closed
	tripped  time.Time     // when the last fault came; remains after it closes
	heard    time.Time     // when the destination last answered since it opened, or when it opened
	pause    time.Duration // last pause before jitter; halved with each answer
	until    time.Time     // end of the pause
	newFirst bool          // the next probe is a delivery that has not failed, if any
	newTried int           // such probes since the last stored one
	held     int           // new deliveries held back by their aggregates since the breaker opened, or since newAgain
	newAgain time.Time     // when new deliveries may probe again after maxHeld were held back
	allowed  int           // deliveries in flight that the ramp allows; 0 without a ramp
	answers  int           // answers in this round
	ramped   time.Time     // when the ramp began
	pressed  bool          // the ramp was at its limit since checkAt was set
	checkAt  time.Time     // when to check pressed
}

func (b *breaker) closed() bool { return b.since.IsZero() }

func (b *breaker) open() bool { return !b.closed() && b.allowed == 0 }

func (b *breaker) ramping() bool { return b.allowed > 0 }

func (b *breaker) mayProbe(now time.Time) bool { return !now.Before(b.until) }

// storedWait reports whether stored deliveries must wait, because a new one must be the probe.
func (b *breaker) storedWait(now time.Time) bool {
	needsNew := b.open() && b.newFirst
	return needsNew && b.held < maxHeld && now.Before(b.turnEnds())
}

// press records how many deliveries workers have begun or could begin.
func (b *breaker) press(ahead int) { b.pressed = b.pressed || b.ramping() && ahead >= b.allowed }

// holds records that aggregates held back n new deliveries.
func (b *breaker) holds(now time.Time, n int) {
	if !b.open() {
		return
	}
	if b.held < maxHeld {
		b.newAgain = now.Add(max(0, b.until.Sub(now)) + storedGrace)
	}

	b.held += n
}

// newWait reports whether new deliveries must wait, because too many were held back. If no stored delivery comes, new
// ones get another turn; otherwise nothing would probe.
func (b *breaker) newWait(now time.Time) bool {
	if !b.open() || b.held < maxHeld {
		return false
	}
	if now.Before(b.newAgain) {
		return true
	}

	b.held = 0
	return false
}

func (b *breaker) turnEnds() time.Time { return b.until.Add(turnGrace) }

// pace bounds the pauses of a breaker, before jitter.
type pace struct {
	first, longest time.Duration
	doubles        bool // with every fault
}

// paceAfter returns the pace of a lane after a fault of its destination: slow if the destination refuses our
// credentials.
func paceAfter(err error, longest time.Duration) pace {
	if delivery.IsUnauthorized(err) {
		return pace{first: login.First, longest: max(login.Longest, longest), doubles: true}
	}
	return pace{first: firstPause, longest: longest}
}

// trip records a fault of the destination in a call that began at the given time; p bounds the pauses. known says
// that the destination failed over the same event before. trip returns the pause, whether the breaker was closed
// before, and whether the pause is new. Faults of deliveries in flight when the breaker opened, or began to ramp,
// change nothing.
func (b *breaker) trip(now, began time.Time, p pace, known bool) (pause time.Duration, opened, longer bool) {
	switch {
	case b.ramping() && began.Before(b.ramped):
		return 0, false, false
	case b.open() && now.Before(b.until):
		return b.until.Sub(now), false, false
	}

	b.newTried++
	if known || !b.open() {
		b.newTried = 0
	}

	b.newFirst = b.newTried < newProbes

	opened = b.closed()
	if opened {
		b.since = now
		b.heard = now
	}

	b.allowed = 0
	b.held = 0
	b.tripped = now

	next := pauseAfter(now.Sub(b.heard))
	if p.doubles {
		next = 2 * b.pause
	}

	b.pause = min(max(next, p.first), p.longest*2/3) // with the spread of half, at most longest
	pause = sleep.Spread(b.pause, pauseSpread)
	b.until = now.Add(pause)

	return pause, opened, true
}

// pauseAfter returns the pause after a time without an answer.
func pauseAfter(silence time.Duration) time.Duration {
	return max(silence/quickShare, (silence-quickTime)/outageShare)
}

// pauseSpread separates the probes of several relays.
const pauseSpread = 0.5

// answered records n answers of the destination for a lane of the given capacity. It reports whether the ramp has
// begun, and whether the breaker has closed.
func (b *breaker) answered(now time.Time, n, capacity int) (ramps, closes bool) {
	if b.closed() || n == 0 {
		return false, false
	}

	b.pause >>= min(n, 62)
	b.heard = now

	if b.open() {
		b.allowed = 1
		b.answers = 0
		b.ramped = now
		b.pressed = false
		b.checkAt = now.Add(rampCalm)
		return true, b.closeAt(capacity)
	}

	b.answers += n
	for b.answers >= b.allowed && b.allowed < capacity {
		b.answers -= b.allowed
		b.allowed *= 2
	}

	return false, b.closeAt(capacity)
}

// closeAt closes the breaker if the ramp allows the lane's whole capacity.
func (b *breaker) closeAt(capacity int) bool {
	if b.allowed < capacity {
		return false
	}
	b.close()
	return true
}

func (b *breaker) close() { *b = breaker{tripped: b.tripped, ramped: b.ramped} }

// calm closes a ramp that was below its limit for rampCalm.
func (b *breaker) calm(now time.Time) (closes bool) {
	if !b.ramping() || now.Before(b.checkAt) {
		return false
	}

	if b.pressed {
		b.pressed = false
		b.checkAt = now.Add(rampCalm)
		return false
	}

	b.close()
	return true
}
