// Package sleep waits.
package sleep

import (
	"context"
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
