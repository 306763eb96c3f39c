package dispatch

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// TestBlindPollsFast: while notifications are not heard the table is looked at
// every fastPoll, from at once, and at the poll interval again when they are.
func TestBlindPollsFast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.PollInterval = time.Hour
		lanes := []*lane{newLane("a", HandlerFunc(func(context.Context, *Event) error { return nil }), DefaultLaneConfig(), time.Second, slog.New(slog.DiscardHandler))}
		s := newScheduler(cfg, lanes, newRouter(), &silentBell{})
		defer s.stop()
		s.rang(0)
		queries := make(chan time.Time, 10000)
		go func() {
			for {
				q, ok := s.next()
				if !ok {
					return
				}
				if q.Source == SourceSweep {
					queries <- time.Now()
				}
				s.claimed(&q, &Claimed{NextDue: -1, Snapshot: Snapshot{Xmin: 1, Xmax: 1}}, nil)
			}
		}()
		during := func(d time.Duration) int {
			<-time.After(d)
			synctest.Wait()
			n := len(queries)
			for range n {
				<-queries
			}
			return n
		}
		during(10 * time.Minute)
		if n := during(10 * time.Minute); n != 0 {
			t.Errorf("%d sweeps in ten minutes with a poll interval of an hour, want none", n)
		}
		s.blind(true)
		if n := during(time.Millisecond); n == 0 {
			t.Error("no sweep at once when notifications are not heard any more")
		}
		if n := during(10 * time.Second); n < 400 || n > 600 {
			t.Errorf("%d sweeps in ten seconds, want about 500", n)
		}
		s.blind(false)
		during(time.Minute)
		if n := during(10 * time.Minute); n > 0 {
			t.Errorf("%d sweeps in ten minutes after notifications are heard again, want none", n)
		}
		s.stop()
		synctest.Wait()
	})
}
