package testenv

import (
	"math"
	"runtime"
)

// Allocated returns how many bytes f allocates, freed ones included: the least of three runs, because other goroutines, such as those of
// a fuzz target, may allocate meanwhile. Tests that run in parallel with others cannot use it.
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
