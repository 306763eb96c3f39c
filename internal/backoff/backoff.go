// Package backoff computes how long to wait before an attempt. It adds jitter, so that relays and events do not retry
// at the same moment.
package backoff

import (
	"math"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/sleep"
)

// Longest bounds a wait before jitter: a wait doubled by jitter must fit into a Duration.
const Longest = 100 * 365 * 24 * time.Hour

// spreadOfRetry is the share by which a pause of [delivery.Lane].Retry varies.
const spreadOfRetry = 0.1

// Wait returns the wait with jitter after the given number of failures, 0 or more: by the lane's Retry, or else by its Backoff. The
// wait is at most twice Backoff.Max, and at most twice Longest. Wait keeps no state: the number of failures is stored with the
// delivery.
func Wait(l *delivery.Lane, failures int) time.Duration {
	if n := len(l.Retry); n > 0 {
		pause := l.Retry[min(max(failures, 1), n)-1]
		return sleep.Spread(min(pause, Longest), spreadOfRetry)
	}
	return sleep.Spread(min(base(l.Backoff, failures), Longest), 1)
}

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

// base returns the wait after the given number of failures, before jitter.
func base(b delivery.Backoff, failures int) time.Duration {
	wait := float64(b.Initial) * math.Pow(b.Multiplier, float64(max(failures-1, 0)))
	if wait >= float64(b.Max) { // also after an overflow to infinity
		return b.Max
	}
	return time.Duration(wait)
}
