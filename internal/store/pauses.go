package store

import (
	"time"

	"github.com/cenkalti/backoff/v4"
)

const (
	// firstReconnect is short: most connections can be replaced at once.
	firstReconnect = 20 * time.Millisecond
	// longestReconnect bounds how long the return of a database goes unnoticed.
	longestReconnect = 2 * time.Second
	// firstRefusal is short: a deadlock, or a lock that a session held for too long, is over by then.
	firstRefusal = 100 * time.Millisecond
	// longestRefusal bounds how long a database that accepts again goes unnoticed.
	longestRefusal = 20 * time.Second
)

// Pauses computes the pauses between attempts at a statement. The pauses grow, without an end. Only one goroutine may
// use a Pauses.
type Pauses struct{ lost, refused *backoff.ExponentialBackOff }

// NewPauses returns the Pauses of one part of a relay.
func NewPauses() Pauses {
	return Pauses{growing(firstReconnect, longestReconnect, 2), growing(firstRefusal, longestRefusal, 4)}
}

func growing(first, longest time.Duration, factor float64) *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(first),
		backoff.WithMaxInterval(longest), backoff.WithMultiplier(factor), backoff.WithMaxElapsedTime(0))
}

// After returns the pause after an error: up to 2 s, plus or minus half, while the database is unavailable. After a
// refusal it is up to 20 s, because each attempt costs the database a statement.
func (p Pauses) After(err error) time.Duration {
	if IsDown(err) {
		return p.lost.NextBackOff()
	}
	return p.refused.NextBackOff()
}

// Reset shortens the pauses after a success.
func (p Pauses) Reset() {
	p.lost.Reset()
	p.refused.Reset()
}
