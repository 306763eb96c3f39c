package dispatch

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/laneconf"
	"github.com/notifyd/notifyd/internal/order"
)

func newTestLane(h delivery.Handler, cfg LaneConfig) *lane {
	l := newLane("a", h, cfg, 50*time.Millisecond, slog.New(slog.DiscardHandler))
	l.ctx, l.onCapacity = context.Background(), func() {}
	return l
}

func testKey(high, low uint64) Key { return order.NewKey(high, low) }

// claimOf hands n fresh events to the lane in one batch.
func claimOf(l *lane, n int) *Batch {
	p := NewBatch(func() bool { return true }, func(bool) {})
	all := make([]Delivery, n)
	for i := range all {
		all[i].Event = &delivery.Event{ID: int64(i + 1), Type: "x"}
	}
	if l.Reserve(Request{N: n}) != n {
		panic("no room")
	}
	p.Fill(all)
	l.Deliver(p, nil)
	return p
}

// takes is a handler that takes so long.
func takes(d time.Duration) func(context.Context, *delivery.Event) error {
	return func(ctx context.Context, _ *delivery.Event) error {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		return ctx.Err()
	}
}

// calls counts the calls of a handler.
type calls struct{ n atomic.Int64 }

func (c *calls) handler(f func(context.Context, *delivery.Event) error) delivery.Handler {
	return delivery.HandlerFunc(func(ctx context.Context, e *delivery.Event) error {
		c.n.Add(1)
		return f(ctx, e)
	})
}

func testLane() LaneConfig {
	cfg := LaneConfig{Lane: laneconf.WithDefaults(delivery.Lane{})}
	cfg.Timeout = 10 * time.Second
	cfg.MaxAttempts = 3
	return cfg
}

func TestLaneBeginsEvenIfTheClaimStopsWaitingAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c calls
		l := newTestLane(c.handler(takes(time.Second)), testLane())
		l.throughput.pace = time.Second
		p := claimOf(l, 8)
		l.TakeBack(p)
		if _, underWay := p.Each(); len(underWay) != 8 {
			t.Errorf("%d of 8 deliveries go on", len(underWay))
		}
		l.goroutines.Wait()
		if c.n.Load() != 8 {
			t.Errorf("%d calls", c.n.Load())
		}
	})
}

func TestLaneStartsAWorkerBesideBusyOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c calls
		l := newTestLane(c.handler(takes(time.Second)), testLane())
		claimOf(l, 1)
		synctest.Wait()
		claimOf(l, 1)
		synctest.Wait()
		if c.n.Load() != 2 {
			t.Errorf("%d of 2 deliveries run, with room for 8", c.n.Load())
		}
		l.goroutines.Wait()
	})
}

func TestLaneTakesNoMoreThanItBeginsWithWhileSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var once sync.Once
		woken := make(chan struct{})
		var c calls
		l := newTestLane(c.handler(takes(20*time.Millisecond)), testLane())
		l.onCapacity = func() { once.Do(func() { close(woken) }) }
		l.throughput.pace = 20 * time.Millisecond // a window of 50 ms holds 20, for 8 workers
		claimOf(l, 8)
		if n := l.Capacity(false); n != 0 {
			t.Errorf("room for %d more while all workers are at work", n)
		}
		<-woken
		if n := l.Capacity(false); n == 0 {
			t.Error("woken without room")
		}
		l.goroutines.Wait()
	})
}

func TestLaneSharesOutAChunkThatTurnedSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c calls
		l := newTestLane(c.handler(takes(time.Second)), testLane())
		l.throughput.pace = time.Microsecond // one worker takes them all
		begin := time.Now()
		claimOf(l, 64)
		l.goroutines.Wait()
		if took := time.Since(begin); c.n.Load() != 64 || took > 12*time.Second {
			t.Errorf("%d calls of a second, 8 at once, took %v", c.n.Load(), took)
		}
	})
}

func TestQueueThatIsNeverEmptyStaysSmall(t *testing.T) {
	t.Parallel()
	l := newTestLane(delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil }), testLane())
	l.running, l.throughput.pace = l.dest.Concurrency, 1 // no worker is hired: the test takes the jobs
	for range 100_000 {
		claimOf(l, 2)
		l.mu.Lock()
		for len(l.queue)-l.head > 10 {
			l.load -= len(l.takeLocked(nil))
		}
		l.mu.Unlock()
	}
	if n := cap(l.queue); n > 100 {
		t.Errorf("the queue of 10 jobs has grown to %d", n)
	}
}

func TestBatchHandlerOfTheWrongLengthFailsThemAll(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string][]error{"none": {}, "too many": {nil, nil, nil}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := delivery.BatchHandlerFunc(func(context.Context, []*delivery.Event) []error { return answer })
			l := newTestLane(h, testLane())
			for _, r := range l.target.callBatch(t.Context(), []*delivery.Event{{}, {}}) {
				if r == nil {
					t.Error("a batch counts as delivered")
				}
			}
			if err := h.Deliver(t.Context(), &delivery.Event{}); err == nil {
				t.Error("an event counts as delivered")
			}
		})
	}
}

// A lane that works off a backlog does not trigger a read with each call that ends.
func TestLaneGrantsWhatIsWorthARead(t *testing.T) {
	t.Parallel()
	l := newTestLane(nil, testLane())
	l.throughput.pace = time.Nanosecond
	woken := 0
	l.Own(func() { woken++ })
	if n := l.Reserve(Request{N: maxQueued, Once: true}); n != maxQueued {
		t.Fatalf("room for %d of %d", n, maxQueued)
	}
	const fair, batch = maxQueued / fairPart, 100
	for _, step := range []struct{ back, ask, want, woken int }{
		{batch - 1, batch, 0, 0},
		{0, 1, 1, 0},           // all that is requested
		{2, batch, batch, 0},   // the same
		{fair - 1, fair, 0, 0}, // not worthwhile, and requested again when it is
		{1, fair, fair, 1},
	} {
		l.Return(step.back)
		if n := l.Reserve(Request{N: step.ask, Once: true}); n != step.want || woken != step.woken {
			t.Errorf("%+v: room for %d, woken %d times", step, n, woken)
		}
	}
}
