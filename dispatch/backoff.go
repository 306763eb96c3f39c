package dispatch

import (
	"math"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/notifyd/notifyd/delivery"
)

// baseWait returns the wait after the given number of failures, before it is spread.
func baseWait(b delivery.Backoff, failures int) time.Duration {
	wait := float64(b.Initial) * math.Pow(b.Multiplier, float64(max(failures-1, 0)))
	if wait >= float64(b.Max) { // also when it overflowed to infinity
		return b.Max
	}
	return time.Duration(wait)
}

// longestWait keeps a wait that is spread to twice its length within a Duration.
const longestWait = 100 * 365 * 24 * time.Hour

// spreadWait returns the spread wait after the given number of failures. It needs
// no memory of earlier waits: the number of failures is stored with the delivery.
func spreadWait(b delivery.Backoff, failures int) time.Duration {
	return spread(min(baseWait(b, failures), longestWait), 1)
}

// spread returns a random time around base, which is off by a share of it at most.
func spread(base time.Duration, share float64) time.Duration {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(base),
		backoff.WithMaxInterval(base),
		backoff.WithRandomizationFactor(share),
		backoff.WithMaxElapsedTime(0), // otherwise it would stop for good after 15 minutes
	).NextBackOff()
}
