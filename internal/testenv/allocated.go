package testenv

import "runtime"

// Allocated returns how many bytes f allocates, freed ones included. No other goroutine may allocate meanwhile, so use it in
// fuzz targets, which run after the parallel tests of their package.
func Allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
