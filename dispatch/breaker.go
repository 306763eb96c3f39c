package dispatch

import (
	"time"

	"github.com/cenkalti/backoff/v4"
)

const (
	// firstPause is how long a lane rests after its destination failed once.
	firstPause = 100 * time.Millisecond
	// longestPause bounds how long a destination that is back goes unnoticed.
	longestPause = 30 * time.Second
)

// breaker keeps a lane from a destination that is down. It opens with the
// first fault of the destination, lets one delivery at a time through after a
// pause that grows with every fault, and closes with the first answer.
// Its zero value is closed. The lane's lock guards it.
type breaker struct {
	pauses *backoff.ExponentialBackOff // nil while closed
	until  time.Time
}

func (b *breaker) open() bool { return b.pauses != nil }

func (b *breaker) mayProbe(now time.Time) bool { return !now.Before(b.until) }

// trip notes a fault of the destination. It returns how long to pause, whether
// the breaker was closed before, and whether the pause is a new one: faults of
// deliveries that were on their way when it opened change nothing.
func (b *breaker) trip(now time.Time) (pause time.Duration, opened, longer bool) {
	if b.pauses == nil {
		b.pauses = backoff.NewExponentialBackOff(
			backoff.WithInitialInterval(firstPause),
			backoff.WithMaxInterval(longestPause),
			backoff.WithMultiplier(2),
			backoff.WithMaxElapsedTime(0), // a destination may be down for days
		)
		opened = true
	} else if now.Before(b.until) {
		return b.until.Sub(now), false, false
	}
	pause = b.pauses.NextBackOff()
	b.until = now.Add(pause)
	return pause, opened, true
}

// reset closes the breaker and reports whether it was open.
func (b *breaker) reset() bool {
	was := b.pauses != nil
	*b = breaker{}
	return was
}
