// Package sleep waits.
package sleep

import (
	"context"
	"math/rand/v2"
	"time"
)

// For waits for d, which may be 0 or less. It returns false if ctx ends before that.
func For(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Spread returns a random duration that differs from d by at most the given share, from 0 to 1: relays that were started
// together do not wait together. d is at least 0, and at most half of the longest duration.
func Spread(d time.Duration, share float64) time.Duration {
	most := min(time.Duration(share*float64(d)), d) // a float may be above d
	return d - most + rand.N(2*most+1)              //nolint:gosec // spreads load, hides nothing
}
