package health

import (
	"math"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/sleep"
)

// LongestWait bounds a wait before jitter: a wait doubled by jitter must fit into a Duration.
const LongestWait = 100 * 365 * 24 * time.Hour

// spreadOfRetry is the share by which a pause of [delivery.Lane].Retry varies.
const spreadOfRetry = 0.1

// wait returns the wait with jitter after the given number of failures, 0 or more: by the lane's Retry, or else by its
// Backoff. The wait is at most twice Backoff.Max, and at most twice LongestWait. It keeps no state: the number of failures
// is stored with the delivery.
func wait(l *delivery.Lane, failures int) time.Duration {
	if n := len(l.Retry); n > 0 {
		pause := l.Retry[min(max(failures, 1), n)-1]
		return sleep.Spread(min(pause, LongestWait), spreadOfRetry)
	}
	return sleep.Spread(min(base(l.Backoff, failures), LongestWait), 1)
}

// base returns the wait after the given number of failures, before jitter.
func base(b delivery.Backoff, failures int) time.Duration {
	wait := float64(b.Initial) * math.Pow(b.Multiplier, float64(max(failures-1, 0)))
	if wait >= float64(b.Max) { // also after an overflow to infinity
		return b.Max
	}
	return time.Duration(wait)
}
