//go:build !linux

package privateserver

// memoryRoom returns 0: only Linux has a file system in memory at a known place.
func memoryRoom() uint64 { return 0 }
