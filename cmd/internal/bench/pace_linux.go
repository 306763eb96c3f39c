package bench

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// newSleeper returns a sleeper that is at most a few dozen microseconds late and uses no CPU while it waits. It reads a
// kernel timer like a socket. Go's timers wait in whole milliseconds, which would send 2,000 events per second in pairs.
// Spinning would take one core of two.
func newSleeper() (sleep sleeper, closeIt func() error, err error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("make a timer: %w", err)
	}
	f := os.NewFile(uintptr(fd), "timerfd")
	var expirations [8]byte
	sleep = func(ctx context.Context, d time.Duration) error {
		stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Now()) })
		defer stop()
		spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(1, d.Nanoseconds()))}
		if err := unix.TimerfdSettime(fd, 0, &spec, nil); err != nil {
			return fmt.Errorf("set a timer: %w", err)
		}
		if _, err := f.Read(expirations[:]); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("wait for a timer: %w", err)
		}
		return nil
	}
	return sleep, f.Close, nil
}
