package bench

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// burn uses the CPU for d of the thread's CPU time, which excludes waits for a core.
func burn(d time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for from := threadCPU(); threadCPU()-from < d; {
	}
}

// threadCPU returns the CPU time of the calling thread.
func threadCPU() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0 // the clock of the calling thread cannot fail
	}
	return time.Duration(t.Nano())
}
