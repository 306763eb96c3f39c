// Package backoff has the pauses between attempts to reach a server or a database. How long a failed event waits is in
// package health.
package backoff

import (
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Pauses are the pauses between attempts that are repeated until one succeeds. They grow, with a jitter of half, and have
// no end. One goroutine uses them.
type Pauses struct{ growing *backoff.ExponentialBackOff }

// NewPauses returns pauses that begin with first, and grow by a factor up to longest.
func NewPauses(first, longest time.Duration, factor float64) Pauses {
	return Pauses{backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(first),
		backoff.WithMaxInterval(longest),
		backoff.WithMultiplier(factor),
		backoff.WithMaxElapsedTime(0), // the default ends all pauses after 15 minutes
	)}
}

const (
	// FirstReconnect is short: most connections can be replaced at once.
	FirstReconnect = 20 * time.Millisecond
	// LongestReconnect bounds how long the return of a database goes unnoticed.
	LongestReconnect = 2 * time.Second
)

// Reconnects returns the pauses between attempts to reach the database.
func Reconnects() Pauses { return NewPauses(FirstReconnect, LongestReconnect, 2) }

// Next returns the next pause.
func (p Pauses) Next() time.Duration { return p.growing.NextBackOff() }

// Reset begins again with the first pause.
func (p Pauses) Reset() { p.growing.Reset() }
