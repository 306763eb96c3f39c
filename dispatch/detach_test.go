package dispatch

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// numbers returns tokens.
func numbers() func() int64 {
	var last int64
	return func() int64 { last++; return last }
}

// A claim that is withdrawn takes those behind it in its lines along, whoever has
// brought them, and answers them a moment later. If their own claim stops waiting in
// that moment, they do not go on under leases: they are fresh again, like the one
// before them, and would be due before it.
func TestDetachInTheMomentBeforeAnAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newTestLane(nil, testLane())
		l.running = l.cfg.Concurrency // as many as there may be: nobody begins
		first, _ := lineClaim(l, SourceSweep, 1)
		second, _ := lineClaim(l, SourceSweep, 2, 3)
		gone, leased := l.detach(first, numbers())
		if len(gone) != 3 || len(leased) > 0 {
			t.Fatalf("%d taken back and %d leased, want all 3 taken back", len(gone), len(leased))
		}
		detached := make(chan []*job, 1)
		go func() { detached <- second.detach(numbers()) }()
		synctest.Wait()
		select {
		case leased := <-detached:
			t.Fatalf("%d go on under leases, although they were given back", len(leased))
		default:
		}
		answerAll(gone)
		if leased := <-detached; len(leased) > 0 {
			t.Errorf("%d go on under leases", len(leased))
		}
		for i := range second.jobs {
			if j := &second.jobs[i]; !j.answered || j.out.verdict != released {
				t.Errorf("%d: answered %v, verdict %d", j.event.ID, j.answered, j.out.verdict)
			}
		}
	})
}

// What has been answered by the lane, but is yet to be written down for its claim, is
// not leased either: its next would be settled before it, and a crash then would
// deliver it again as the last.
func TestDetachInTheMomentBeforeADelivery(t *testing.T) {
	t.Parallel()
	l := newTestLane(nil, testLane())
	l.running = l.cfg.Concurrency
	b, _ := lineClaim(l, SourceSweep, 1)
	j := l.take(nil)[0]
	l.mu.Lock()
	l.leaveLocked(j, delivered)
	l.mu.Unlock()
	if _, leased := l.detach(b, numbers()); len(leased) > 0 {
		t.Error("what was delivered goes on under a lease")
	}
}

// Two of an aggregate go on under leases of one claim, and the first is answered before the
// claim is settled. It is written with a lease that is not there yet: a settlement that
// waited for it would wait for itself.
func TestClaimDoesNotWaitForItsOwnAnswers(t *testing.T) {
	t.Parallel()
	l := newTestLane(nil, testLane())
	l.running = l.cfg.Concurrency
	b, _ := lineClaim(l, SourceSweep, 1, 2)
	l.running, l.pace = 1, time.Microsecond // one worker gets both
	jobs := l.take(nil)
	if leased := b.detach(numbers()); len(jobs) != 2 || len(leased) != 2 {
		t.Fatalf("a worker has %d, and %d go on under leases; want 2", len(jobs), len(leased))
	}
	l.finished(time.Now(), time.Microsecond, jobs[:1], []outcome{{verdict: delivered}})
	if len(b.behind) > 0 {
		t.Errorf("waits for %d answers", len(b.behind))
	}
}

// A delivery without a line that goes on under a lease may be back in the queue, and
// leave it again when its destination is found to be away. It has a row then: a lane
// that waited for it to be free would wait for ever.
func TestLaneWaitsForNoSettlementThatIsOver(t *testing.T) {
	t.Parallel()
	l := newTestLane(nil, testLane())
	l.running = l.cfg.Concurrency
	b := claimOf(l, 2)
	b.late.held = make(map[int64]lease)
	jobs := l.take(nil)
	for len(jobs) < 2 {
		jobs = append(jobs, l.take(nil)...)
	}
	if leased := b.detach(numbers()); len(leased) != 2 {
		t.Fatalf("%d of 2 go on under leases", len(leased))
	}
	b.late.written([]*job{jobs[0], jobs[1]}, nil)
	b.settled()
	l.untake(jobs[1:])
	l.mu.Lock()
	gone := l.emptyLocked()
	l.mu.Unlock()
	if len(gone) != 1 || l.passing != 0 || l.behind != inOrder {
		t.Errorf("%d left the queue; the lane waits for %d settlements and lags behind %d", len(gone), l.passing, l.behind)
	}
}

// TestRunLaneOutlivesLeasesThatAreGivenBack: a worker has several events without an
// aggregate in hand when the first of them hangs, and the destination is then found to
// be away. The others go back into the queue and out of it, under leases. When it is
// back, all are delivered, and so is what is written then.
func TestRunLaneOutlivesLeasesThatAreGivenBack(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var c calls
		var down atomic.Bool
		r.to(t, "a", c.handler(func(ctx context.Context, _ *Event) error {
			if !down.Load() {
				return nil
			}
			sleep(ctx, 3*DefaultConfig().LockBudget)
			return Unavailable(errors.New("connection refused"))
		}), testLane(), "x")
		r.start()
		<-r.Ready()
		ids := db.write("x", 200)
		eventually(t, "known to be fast", db.empty)
		down.Store(true)
		ids = append(ids, db.write("x", 20)...)
		eventually(t, "down", func() bool { return r.log.count("destination is unavailable") == 1 })
		down.Store(false)
		eventually(t, "back", db.empty)
		ids = append(ids, db.write("x", 20)...)
		eventually(t, "all delivered", db.empty)
		c.once(t, ids)
	})
}
