//go:build !linux

package bench

import "time"

// burn uses the CPU for d, which may include waits for a core.
func burn(d time.Duration) {
	for from := time.Now(); time.Since(from) < d; {
	}
}
