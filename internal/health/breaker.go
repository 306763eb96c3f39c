package health

import (
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/backoff"
	"github.com/notifyd/notifyd/internal/login"
)

const (
	// firstPause is how long a lane rests after its destination failed once.
	firstPause = 100 * time.Millisecond
	// rampCalm ends a ramp that is never at its limit: with fewer events than the ramp allows, it
	// would not end otherwise.
	rampCalm = 5 * time.Second
	// turnGrace is how long new deliveries have to arrive when it is their turn to be the probe. An
	// engine finds available events within milliseconds.
	turnGrace = 100 * time.Millisecond
	// maxHeld is how many new deliveries their aggregates may hold back during the search for a
	// probe: each of them becomes a row.
	maxHeld = 64
	// storedGrace is how long the breaker waits for stored deliveries after the pause. There may be none
	// left: another relay may have delivered them, or a person removed them.
	storedGrace = 5 * time.Second
)

// breaker keeps a lane from a destination that is down. It opens with the first fault of the
// destination and lets one delivery at a time through after a pause that grows with every fault.
// With the first answer it begins to ramp up: the number of deliveries that it allows in flight
// doubles with each round of answers, until the lane has capacity for no more. Only then does it close.
// Each answer halves the next pause, as each fault doubles it: a destination that fails more often
// than it answers is not hammered, and the events of one that answers most never wait for long. Its
// zero value is closed.
type breaker struct {
	since    time.Time     // when it was tripped; zero while it is closed
	pause    time.Duration // the last one, before jitter; halved with each answer
	until    time.Time     // the end of the pause
	newFirst bool          // the next probe is a delivery that has not failed yet, if there is any
	held     int           // new deliveries that their aggregates have held back since it was tripped, or since newAgain
	newAgain time.Time     // the end of the turn of stored deliveries, once maxHeld were held back
	allowed  int           // how many may be in flight while it ramps up; 0 otherwise
	answers  int           // of this round
	ramped   time.Time     // when it began to ramp up
	pressed  bool          // as many as allowed were in flight since checkAt was set
	checkAt  time.Time     // when to look at pressed
}

func (b *breaker) closed() bool { return b.since.IsZero() }

func (b *breaker) open() bool { return !b.closed() && b.allowed == 0 }

func (b *breaker) ramping() bool { return b.allowed > 0 }

func (b *breaker) mayProbe(now time.Time) bool { return !now.Before(b.until) }

// storedWait reports whether stored deliveries must wait, because it is the turn of new ones to be
// the probe.
func (b *breaker) storedWait(now time.Time) bool {
	return b.open() && b.newFirst && b.held < maxHeld && now.Before(b.turnEnds())
}

// press records that as many deliveries are ahead as a worker could begin, or has begun.
func (b *breaker) press(ahead int) { b.pressed = b.pressed || b.ramping() && ahead >= b.allowed }

// holds records that n new deliveries were held back by their aggregates.
func (b *breaker) holds(now time.Time, n int) {
	if !b.open() {
		return
	}
	if b.held < maxHeld {
		b.newAgain = now.Add(max(0, b.until.Sub(now)) + storedGrace)
	}
	b.held += n
}

// newWait reports whether new deliveries must wait, because so many were held back. If no stored
// delivery comes they have another turn; otherwise nothing would ever probe.
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
type pace struct{ first, longest time.Duration }

// paceAfter returns the pace of a lane after a fault of its destination: slow where that refuses our credentials.
func paceAfter(err error, longest time.Duration) pace {
	if delivery.IsUnauthorized(err) {
		return pace{login.First, max(login.Longest, longest)}
	}
	return pace{firstPause, longest}
}

// trip notes a fault of the destination in a call that began at the given time; p bounds the
// pauses. known says that the destination has failed over the same event before. trip returns how
// long to pause, whether the breaker was closed before, and whether the pause is a new one: faults
// of deliveries that were in flight when the breaker opened, or began to ramp up, change nothing.
func (b *breaker) trip(now, began time.Time, p pace, known bool) (pause time.Duration, opened, longer bool) {
	switch {
	case b.ramping() && began.Before(b.ramped):
		return 0, false, false
	case b.open() && now.Before(b.until):
		return b.until.Sub(now), false, false
	}
	b.newFirst = known || !b.open() // new and old in turn
	if opened = b.closed(); opened {
		b.since = now
	}
	b.allowed, b.held = 0, 0
	b.pause = min(max(2*b.pause, p.first), p.longest*2/3) // spread by half, it is longest at most
	pause = backoff.Spread(b.pause, pauseSpread)
	b.until = now.Add(pause)
	return pause, opened, true
}

// pauseSpread keeps the probes of several relays apart.
const pauseSpread = 0.5

// answered notes n answers of the destination, at a lane of the given capacity. It reports
// whether the breaker has begun to ramp up, and whether it has closed.
func (b *breaker) answered(now time.Time, n, capacity int) (ramps, closes bool) {
	if b.closed() || n == 0 {
		return false, false
	}
	b.pause >>= min(n, 62)
	if b.open() {
		b.allowed, b.answers, b.ramped = 1, 0, now
		b.pressed, b.checkAt = false, now.Add(rampCalm)
		return true, b.closeAt(capacity)
	}
	b.answers += n
	for b.answers >= b.allowed && b.allowed < capacity {
		b.answers -= b.allowed
		b.allowed *= 2
	}
	return false, b.closeAt(capacity)
}

// closeAt closes the breaker if it allows as many deliveries as the lane has capacity for.
func (b *breaker) closeAt(capacity int) bool {
	if b.allowed < capacity {
		return false
	}
	*b = breaker{}
	return true
}

// calm closes a ramp that has not been at its limit for rampCalm.
func (b *breaker) calm(now time.Time) (closes bool) {
	if !b.ramping() || now.Before(b.checkAt) {
		return false
	}
	if b.pressed {
		b.pressed, b.checkAt = false, now.Add(rampCalm)
		return false
	}
	*b = breaker{}
	return true
}
