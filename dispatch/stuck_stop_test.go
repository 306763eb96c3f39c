package dispatch

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
)

// TestStopDoesNotWaitForGivenUpCalls: such a call has had its time. Nor does anything of the lane go on afterwards.
func TestStopDoesNotWaitForGivenUpCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, err := New(Config{Window: time.Second, ShutdownTimeout: time.Hour}, nil, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		h, cfg := &deaf{few: 1, over: make(chan struct{})}, testLane()
		slow := make(chan struct{})
		if err := errors.Join(d.Add("stuck", h, cfg), d.Add("works", delivery.HandlerFunc(func(context.Context, *delivery.Event) error {
			<-slow
			return nil
		}), cfg)); err != nil {
			t.Fatal(err)
		}
		d.Begin(t.Context())
		l := d.first("stuck")
		claimOf(l, 1)
		after(l.workers.chunkLimit() + time.Millisecond)
		p := claimOf(d.first("works"), 1)
		began := time.Now()
		go func() {
			time.Sleep(time.Second) //nolint:forbidigo // of the bubble
			close(slow)
		}()
		if err := d.Drain(&sync.WaitGroup{}); !errors.Is(err, ErrShutdownIncomplete) || !strings.Contains(err.Error(), "[stuck]") {
			t.Errorf("it ends with %v", err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("it took %v, and the call that works takes 1s", took)
		}
		if all, _ := verdicts(t, p); all[VerdictDelivered] != 1 {
			t.Errorf("answers of the call that works: %v", all)
		}
		for _, l := range d.lanes {
			if l.workers.timer.Stop() {
				t.Errorf("the watchdog of %s still runs", l.dest.Name)
			}
		}
		close(h.over)
		l.goroutines.Wait()
	})
}

// TestDisown: what a relay knows about a destination ends when another relay calls it. The destination was down then;
// now it may be up.
func TestDisown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		away := true
		l, _ := overheardLane(delivery.HandlerFunc(func(context.Context, *delivery.Event) error {
			if away {
				return delivery.Unavailable(errors.New("away"))
			}
			return nil
		}), testLane())
		l.Own(func() {})
		for range 10 {
			claimOf(l, 1)
			l.goroutines.Wait()
			after(time.Minute)
		}
		claimOf(l, 1)
		l.goroutines.Wait()
		if s := l.stats(); !s.Down || s.Capacity != 0 {
			t.Fatalf("%+v", s)
		}
		l.Withdraw()
		l.Disown()
		if s := l.stats(); s.Down || s.State != observe.BreakerClosed {
			t.Errorf("disowned: %+v", s)
		}
		away = false
		l.Own(func() {})
		p := claimOf(l, 5)
		l.goroutines.Wait()
		if all, left := verdicts(t, p); all[VerdictDelivered] != 5 || left != 0 {
			t.Errorf("answers %v, %d have none", all, left)
		}
	})
}

// firstWrite is a log that closes itself with its first line, and goes on at once.
type firstWrite chan struct{}

func (w firstWrite) Write(p []byte) (int, error) {
	close(w)
	return len(p), nil
}

// TestDisownDuringReport: the race detector finds what a report reads while the lane is given away.
func TestDisownDuringReport(t *testing.T) {
	t.Parallel()
	l, _ := overheardLane(delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil }), testLane())
	began := make(firstWrite)
	l.log = slog.New(slog.NewTextHandler(began, nil))
	l.mu.Lock()
	past := time.Now().Add(-time.Hour)
	l.health.Fault(past, past, errors.New("down"))
	l.health.Responds(past, l.sizeLocked()) // a ramp that is calm
	l.mu.Unlock()
	ticked := make(chan struct{})
	go func() {
		defer close(ticked)
		l.tick()
	}()
	<-began
	l.Disown()
	<-ticked
}
