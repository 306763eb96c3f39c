package queue

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/wake"
)

// TestBlindPollsFast: while notifications are not heard, the table is polled every 20 ms, at
// once and until they are heard again; then at the poll interval.
func TestBlindPollsFast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.PollInterval = time.Hour
		d, err := dispatch.New(cfg.dispatcher(), nil, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		h := delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil })
		if err := d.Add("a", h, dispatch.LaneConfig{}); err != nil {
			t.Fatal(err)
		}
		relay := wake.New(wake.Options{Poll: cfg.PollInterval, Report: func(error) {}})
		e := &Engine{relay: relay, sched: newScheduler(cfg.Limits, d.QueueLanes(), d, relay)}
		s := e.sched
		defer s.stop()
		ctx, cancel := context.WithCancel(t.Context())
		go relay.Run(ctx)
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
		e.Blind(true)
		if n := during(time.Millisecond); n == 0 {
			t.Error("no sweep at once when notifications are not heard any more")
		}
		if n := during(10 * time.Second); n < 400 || n > 600 {
			t.Errorf("%d sweeps in ten seconds, want about 500", n)
		}
		e.Blind(false)
		during(time.Minute)
		if n := during(10 * time.Minute); n > 0 {
			t.Errorf("%d sweeps in ten minutes after notifications are heard again, want none", n)
		}
		cancel()
		s.stop()
		synctest.Wait()
	})
}
