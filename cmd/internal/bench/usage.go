package bench

import (
	"time"

	"golang.org/x/sys/unix"
)

// ownCPU returns the CPU time that this process has used.
func ownCPU() time.Duration {
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &usage) != nil {
		return 0 // getrusage of the calling process cannot fail
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
