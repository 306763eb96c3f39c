package bench

import (
	"context"
	"time"
)

// sleeper waits for a duration, or until ctx ends.
type sleeper func(ctx context.Context, d time.Duration) error

// sleepTimer is a sleeper with the precision of Go's timers: on Linux, up to a
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

// schedule is when each of n events is due, as the time since start.
type schedule struct {
	start time.Time
	n     int
	at    func(int) time.Duration
}

func (s schedule) due(i int) time.Time { return s.start.Add(s.at(i)) }

// pace sends the numbers of the events, each when it is due, and closes the channel. The schedule is fixed beforehand: a
// slow receiver catches up, and late events are measured as late.
func pace(ctx context.Context, s schedule, due chan<- int, sleep sleeper) error {
	defer close(due)
	for i := range s.n {
		if wait := time.Until(s.due(i)); wait > 0 {
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

// steadily returns the schedule of a constant rate, in events per second.
func steadily(rate int) func(int) time.Duration {
	return func(i int) time.Duration {
		whole, rest := i/rate, i%rate
		return time.Duration(whole)*time.Second + time.Duration(rest)*time.Second/time.Duration(rate)
	}
}
