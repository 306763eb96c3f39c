package testenv

import (
	"math"
	"runtime"
)

// Allocated returns the bytes that f allocates, including freed ones. It takes the least of three runs: the goroutines of a fuzz target
// allocate, too. Parallel tests cannot use it.
func Allocated(f func()) uint64 {
	least := uint64(math.MaxUint64)
	for range 3 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	return least
}
