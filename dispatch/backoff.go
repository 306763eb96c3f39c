package dispatch

import (
	"math"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/notifyd/notifyd/delivery"
)

// baseWait returns the wait after the given number of failures, before jitter.
func baseWait(b delivery.Backoff, failures int) time.Duration {
	wait := float64(b.Initial) * math.Pow(b.Multiplier, float64(max(failures-1, 0)))
	if wait >= float64(b.Max) { // also when it overflowed to infinity
		return b.Max
	}
	return time.Duration(wait)
}

// longestWait leaves room in a Duration for a wait that jitter doubles.
const longestWait = 100 * 365 * 24 * time.Hour

// spreadWait returns the wait with jitter after the given number of failures. It needs no memory of
// earlier waits: the number of failures is stored with the delivery.
func spreadWait(b delivery.Backoff, failures int) time.Duration {
	return spread(min(baseWait(b, failures), longestWait), 1)
}

// spread returns a random duration that differs from base by at most the given share.
func spread(base time.Duration, share float64) time.Duration {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(base),
		backoff.WithMaxInterval(base),
		backoff.WithRandomizationFactor(share),
		backoff.WithMaxElapsedTime(0), // otherwise it would stop for good after 15 minutes
	).NextBackOff()
}
