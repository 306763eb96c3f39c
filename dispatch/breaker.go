package dispatch

import (
	"time"

	"github.com/cenkalti/backoff/v4"
)

const (
	// firstPause is how long a lane rests after its destination failed once.
	firstPause = 100 * time.Millisecond
	// longestPause bounds how long a destination that is back goes unnoticed,
	// unless the lane is told otherwise.
	longestPause = 30 * time.Second
	// rampCalm ends a ramp that nothing pushes against: where fewer events come
	// than it allows, it would not end otherwise.
	rampCalm = 5 * time.Second
)

// breaker keeps a lane from a destination that is down. It opens with the
// first fault of the destination and lets one delivery at a time through after a
// pause that grows with every fault. With the first answer it begins to ramp up:
// as many as it allows may be in flight, and that doubles with each round of
// answers, until it is all that the lane has room for. Only then it is closed and
// forgets how long its pauses were: what answers one probe and falls over again
// is not hammered. Its zero value is closed. The lane's lock guards it.
type breaker struct {
	pauses  *backoff.ExponentialBackOff // nil while closed
	until   time.Time                   // the end of the pause
	allowed int                         // how many may be in flight while it ramps up; 0 unless it does
	answers int                         // of this round
	ramped  time.Time                   // when it began to ramp up
	pressed bool                        // as many as allowed were in flight since checkAt was set
	checkAt time.Time                   // when that is to be looked at
}

func (b *breaker) closed() bool { return b.pauses == nil }

func (b *breaker) open() bool { return b.pauses != nil && b.allowed == 0 }

func (b *breaker) ramping() bool { return b.allowed > 0 }

func (b *breaker) mayProbe(now time.Time) bool { return !now.Before(b.until) }

// trip notes a fault of the destination, met by a call that began at the given
// time; longest bounds the pauses. It returns how long to pause, whether the breaker was closed before, and
// whether the pause is a new one: faults of deliveries that were on their way
// when it opened, or began to ramp up, change nothing.
func (b *breaker) trip(now, began time.Time, longest time.Duration) (pause time.Duration, opened, longer bool) {
	switch {
	case b.pauses == nil:
		b.pauses = backoff.NewExponentialBackOff(
			backoff.WithInitialInterval(min(firstPause, longest)),
			backoff.WithMaxInterval(longest),
			backoff.WithMultiplier(2),
			backoff.WithMaxElapsedTime(0), // a destination may be down for days
		)
		opened = true
	case b.ramping() && began.Before(b.ramped):
		return 0, false, false
	case b.open() && now.Before(b.until):
		return b.until.Sub(now), false, false
	}
	b.allowed = 0
	pause = b.pauses.NextBackOff()
	b.until = now.Add(pause)
	return pause, opened, true
}

// answered notes n answers of the destination, at a lane that has room for
// capacity. It reports whether the breaker has begun to ramp up, and whether it
// has closed.
func (b *breaker) answered(now time.Time, n, capacity int) (ramps, closes bool) {
	switch {
	case b.closed() || n == 0:
		return false, false
	case b.open():
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

// closeAt closes the breaker if it allows all that there is room for.
func (b *breaker) closeAt(capacity int) bool {
	if b.allowed < capacity {
		return false
	}
	*b = breaker{}
	return true
}

// calm closes a ramp that nothing has pushed against for rampCalm.
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
