//go:build !linux

package bench

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// resetPeak says how peak is measured; it can be reset on Linux only.
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

// cpuOf cannot tell what other processes have used.
func cpuOf([]int) (total time.Duration, ok bool) { return 0, false }

// parentOf cannot tell the parent of another process.
func parentOf(int) int { return 0 }

// cpuOfFamily cannot tell what other processes have used.
func cpuOfFamily(int) time.Duration { return 0 }
