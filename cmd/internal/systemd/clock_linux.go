package systemd

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonicMicroseconds is the time by which systemd recognizes that the next
// READY=1 answers this reload and not an earlier one.
func monotonicMicroseconds() int64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return 0 // the call does not fail for this clock
	}
	return now.Nano() / int64(time.Microsecond)
}
