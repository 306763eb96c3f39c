package bench

import (
	"context"
	"time"
)

// sleeper waits for a duration, or until ctx ends.
type sleeper func(ctx context.Context, d time.Duration) error

// sleepTimer is a sleeper that is as precise as Go's timers: on Linux, up to a
// millisecond late.
func sleepTimer(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// pace sends the numbers from 0 to n-1, each at its time after start, and
// closes due. The schedule is fixed beforehand: one that falls behind catches
// up, and what is late because of it is measured as late.
func pace(ctx context.Context, start time.Time, n int, at func(int) time.Duration, due chan<- int, sleep sleeper) error {
	defer close(due)
	for i := range n {
		if wait := time.Until(start.Add(at(i))); wait > 0 {
			if err := sleep(ctx, wait); err != nil {
				return err
			}
		}
		select {
		case due <- i:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// steadily is the schedule of a constant rate per second.
func steadily(rate int) func(int) time.Duration {
	return func(i int) time.Duration {
		whole, rest := i/rate, i%rate
		return time.Duration(whole)*time.Second + time.Duration(rest)*time.Second/time.Duration(rate)
	}
}
