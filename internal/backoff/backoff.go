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

// Wait returns the wait with jitter after the given number of failures, 0 or more. The wait is at most twice b.Max
// and at most twice Longest. Wait keeps no state: the number of failures is stored with the delivery.
func Wait(b delivery.Backoff, failures int) time.Duration {
	return Spread(min(base(b, failures), Longest), 1)
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
