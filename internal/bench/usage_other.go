//go:build !linux

package bench

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// resetPeak says how the peak is measured; only Linux can reset it.
func resetPeak() (how string, err error) {
	return "the most that was resident since the start of this process", nil
}

// peak returns the most memory that was resident, in bytes.
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

// cpuOf does not know the CPU time of other processes.
func cpuOf([]int) (total time.Duration, ok bool) { return 0, false }

// parentOf does not know the parent of another process.
func parentOf(int) int { return 0 }

// cpuOfFamily does not know the CPU time of other processes.
func cpuOfFamily(int) time.Duration { return 0 }
