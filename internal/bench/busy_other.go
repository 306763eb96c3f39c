//go:build !linux

package bench

import "time"

// burn uses the CPU for a time, in which the thread may have waited for a core.
func burn(d time.Duration) {
	for from := time.Now(); time.Since(from) < d; {
	}
}
