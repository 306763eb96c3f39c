//go:build !linux

package bench

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// resetPeak returns how the peak is measured. Only Linux can reset it.
func resetPeak() (how string, err error) {
	return "the most that was resident since the start of this process", nil
}

// peak returns the peak of the resident memory, in bytes.
func peak() (int64, error) {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0, err
	}
	if runtime.GOOS == "darwin" {
		return usage.Maxrss, nil
	}
	return usage.Maxrss << 10, nil
}

// cpuOf returns false: the CPU time of other processes is unknown.
func cpuOf([]int) (total time.Duration, ok bool) { return 0, false }

// parentOf returns 0: the parent of another process is unknown.
func parentOf(int) int { return 0 }

// cpuOfFamily returns 0: the CPU time of other processes is unknown.
func cpuOfFamily(int) time.Duration { return 0 }
