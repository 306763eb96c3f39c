package dispatch

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func newTestLane(h Handler, cfg LaneConfig) *lane {
	l := newLane("a", h, cfg, 50*time.Millisecond, slog.New(slog.DiscardHandler))
	l.ctx, l.onRoom = context.Background(), func() {}
	return l
}

// claimOf hands n fresh events to the lane as one claim would.
func claimOf(l *lane, n int) *batch {
	b := &batch{work: make([]Work, n), plans: make([]plan, n), lanes: []*lane{l}, ready: make(chan struct{}, 1), late: &leases{}}
	b.jobs = make([]job, n)
	jobs := make([]*job, n)
	for i := range b.jobs {
		b.work[i] = Work{Event: Event{ID: int64(i + 1), Type: "x"}, Fresh: true}
		b.plans[i] = plan{from: i, to: i + 1}
		b.jobs[i] = job{batch: b, work: i, lane: l, event: &b.work[i].Event, fast: true}
		jobs[i] = &b.jobs[i]
	}
	b.fast, b.waiting, b.unanswered = n, n, n
	if l.grant(n) != n {
		panic("no room")
	}
	l.push(jobs)
	return b
}

func TestLaneBeginsEvenIfTheClaimStopsWaitingAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c calls
		l := newTestLane(c.handler(takes(time.Second)), testLane())
		l.pace = time.Second
		b := claimOf(l, 8)
		b.late.held = make(map[int64]lease)
		if leased := b.detach(func() int64 { return 1 }); len(leased) != 8 {
			t.Errorf("%d of 8 deliveries go on under a lease", len(leased))
		}
		l.workers.Wait()
		if c.n() != 8 {
			t.Errorf("%d calls", c.n())
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
		if c.n() != 2 {
			t.Errorf("%d of 2 deliveries run, with room for 8", c.n())
		}
		l.workers.Wait()
	})
}

func TestLaneTakesNoMoreThanItBeginsWithWhileSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var once sync.Once
		woken := make(chan struct{})
		var c calls
		l := newTestLane(c.handler(takes(20*time.Millisecond)), testLane())
		l.onRoom = func() { once.Do(func() { close(woken) }) }
		l.pace = 20 * time.Millisecond // a window of 50 ms holds 20, for 8 workers
		claimOf(l, 8)
		if n := l.roomy(); n != 0 {
			t.Errorf("room for %d more while all workers are at work", n)
		}
		<-woken
		if n := l.roomy(); n == 0 {
			t.Error("woken without room")
		}
		l.workers.Wait()
	})
}

func TestLaneSharesOutAChunkThatTurnedSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c calls
		l := newTestLane(c.handler(takes(time.Second)), testLane())
		l.pace = time.Microsecond // one worker takes them all
		begin := time.Now()
		claimOf(l, 64)
		l.workers.Wait()
		if took := time.Since(begin); c.n() != 64 || took > 12*time.Second {
			t.Errorf("%d calls of a second, 8 at once, took %v", c.n(), took)
		}
	})
}

func TestQueueThatIsNeverEmptyStaysSmall(t *testing.T) {
	t.Parallel()
	l := newTestLane(HandlerFunc(func(context.Context, *Event) error { return nil }), testLane())
	l.running = l.cfg.Concurrency // nobody is hired, the test takes
	for range 100_000 {
		l.push([]*job{{event: &Event{}}, {event: &Event{}}})
		l.mu.Lock()
		for len(l.queue)-l.head > 10 {
			l.takeLocked(nil)
		}
		l.mu.Unlock()
	}
	if n := cap(l.queue); n > 100 {
		t.Errorf("the queue of 10 jobs has grown to %d", n)
	}
}

// A line whose rows somebody has locked is looked at later. By then it may be over,
// and its aggregate have a new one.
func TestLaneForgetsNoLineForOneThatIsOver(t *testing.T) {
	t.Parallel()
	l := newTestLane(nil, testLane())
	read := func() {
		l.know(StoredLine{Ref: Ref{1, "a"}, Key: "t/k", State: EntryParked})
		l.know(StoredLine{Ref: Ref{2, "a"}, Key: "t/other", State: EntryParked})
	}
	look := func(found LineState) {
		lines, _ := l.takeLooks(2, inOrder)
		if len(lines) != 2 {
			t.Fatalf("%d lines to look at", len(lines))
		}
		for _, ln := range lines {
			l.looked(ln, found, 1)
		}
	}
	read()
	look(LineLocked)
	read()
	look(LineEmpty)
	l.know(StoredLine{Ref: Ref{3, "a"}, Key: "t/k", State: EntryRetry})
	l.lookAgain()
	if ln := l.lines["t/k"]; ln == nil || !ln.stored {
		t.Error("an event of t/k would go past the stored delivery of an earlier one")
	}
}

// A lane that works off a backlog is not read for with each call that comes to its end.
func TestLaneGrantsWhatIsWorthARead(t *testing.T) {
	t.Parallel()
	l := newTestLane(nil, testLane())
	l.pace = time.Nanosecond
	woken := 0
	Lane{l}.Own(func() { woken++ })
	if n := (Lane{l}).Grant(maxQueued); n != maxQueued {
		t.Fatalf("room for %d of %d", n, maxQueued)
	}
	const fair, batch = maxQueued / fairPart, 100
	for _, step := range []struct{ back, ask, want, woken int }{
		{batch - 1, batch, 0, 0},
		{0, 1, 1, 0},           // all that is asked for
		{2, batch, batch, 0},   // the same
		{fair - 1, fair, 0, 0}, // not worth it, and asked for again when it is
		{1, fair, fair, 1},
	} {
		Lane{l}.Return(step.back)
		if n := (Lane{l}).Grant(step.ask); n != step.want || woken != step.woken {
			t.Errorf("%+v: room for %d, woken %d times", step, n, woken)
		}
	}
}
