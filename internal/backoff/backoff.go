// Package backoff computes how long to wait before an attempt. It adds jitter, so that relays and events do not retry
// at the same moment.
package backoff

import (
	"math"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/notifyd/notifyd/delivery"
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
		return Spread(min(pause, Longest), spreadOfRetry)
	}
	return Spread(min(base(l.Backoff, failures), Longest), 1)
}

// Spread returns a random duration that differs from d by at most the given share, from 0 to 1.
func Spread(d time.Duration, share float64) time.Duration {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(d),
		backoff.WithMaxInterval(d),
		backoff.WithRandomizationFactor(share),
		backoff.WithMaxElapsedTime(0), // the default ends all waits after 15 minutes
	).NextBackOff()
}

// base returns the wait after the given number of failures, before jitter.
func base(b delivery.Backoff, failures int) time.Duration {
	wait := float64(b.Initial) * math.Pow(b.Multiplier, float64(max(failures-1, 0)))
	if wait >= float64(b.Max) { // also after an overflow to infinity
		return b.Max
	}
	return time.Duration(wait)
}
