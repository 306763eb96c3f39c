package dispatch

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// smallKeeper refuses transactions that are too large, and one more.
type smallKeeper struct {
	LeaseKeeper
	refuse int // the transaction to refuse, from 1
	calls  int
	put    map[int64]int
}

func (k *smallKeeper) Finish(_ context.Context, done, put []Entry) (int, error) {
	k.calls++
	switch {
	case len(done)+len(put) > maxFinish:
		return 0, errors.New("too large")
	case k.calls == k.refuse:
		return 0, errors.New("statement timeout")
	}
	for _, e := range append(done, put...) {
		k.put[e.EventID]++
	}
	return 0, nil
}

// TestManyAnswers: a flood of late answers is written in parts, and each of
// them once, also if a part fails.
func TestManyAnswers(t *testing.T) {
	t.Parallel()
	const n = 3*maxFinish + 1
	k := &smallKeeper{refuse: 2, put: make(map[int64]int)}
	log := slog.New(slog.DiscardHandler)
	ls := &leases{
		keeper: k, log: log, health: &health{log: log, observer: nobody{}}, retryIn: func(time.Duration) {},
		wake: make(chan struct{}, 1), held: make(map[int64]lease),
	}
	for id := range int64(n) {
		ls.results = append(ls.results, lateResult{entry: Entry{Ref: Ref{EventID: id}}, delivered: id%2 == 0, job: &job{}})
	}
	if err := ls.flush(t.Context()); err == nil || len(k.put) != maxFinish || len(ls.results) != n-maxFinish {
		t.Fatalf("flush() = %v; %d written, %d kept", err, len(k.put), len(ls.results))
	}
	if err := ls.flush(t.Context()); err != nil || len(k.put) != n || len(ls.results) != 0 {
		t.Errorf("flush() = %v; %d written, %d kept", err, len(k.put), len(ls.results))
	}
	for id, times := range k.put {
		if times != 1 {
			t.Errorf("answer %d was written %d times", id, times)
		}
	}
}

// stoppedKeeper refuses what it is asked after the end of ctx, as the real one does.
type stoppedKeeper struct {
	LeaseKeeper
	stop func() // called by the first transaction
}

func (k *stoppedKeeper) Finish(ctx context.Context, _, _ []Entry) (int, error) {
	k.stop()
	return 0, ctx.Err()
}

func (k *stoppedKeeper) Renew(ctx context.Context, _ []int64) error { return ctx.Err() }

// witness counts incidents.
type witness struct{ seen []IncidentKind }

func (w *witness) Observe(i Incident) { w.seen = append(w.seen, i.Kind) }

// TestStopIsNoOutage: a relay that stops while it writes answers or renews
// leases does not report that the database is gone.
func TestStopIsNoOutage(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	log, w := slog.New(slog.DiscardHandler), &witness{}
	ls := &leases{
		keeper: &stoppedKeeper{stop: cancel}, log: log, health: &health{log: log, observer: w}, retryIn: func(time.Duration) {},
		wake: make(chan struct{}, 1), held: map[int64]lease{1: {time.Now().Add(time.Hour)}},
	}
	ls.results = make([]lateResult, maxFinish+1)
	if err := ls.flush(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("flush() = %v", err)
	}
	ls.renew(ctx)
	if len(w.seen) != 0 {
		t.Errorf("incidents %v", w.seen)
	}
}

// A claim that is lost with its connection takes back the answers of what it wanted to
// lease. What comes after them in their lines is settled when they are written, and not
// before, nor later.
func TestAnswerOfALostClaimIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ls := &leases{}
		ls.cond.L = &ls.mu
		j := &job{batch: &batch{late: ls}, leased: true, token: 1}
		ls.answered(j, outcome{verdict: delivered})
		ls.reclaim([]*job{j})
		begin, waited := time.Now(), make(chan time.Duration, 1)
		go func() {
			ls.awaitWritten([]*job{j})
			waited <- time.Since(begin)
		}()
		const salvage = turnPatience / 4
		after(salvage)
		ls.written([]*job{j}, errors.New("connection lost"))
		if took := <-waited; took != salvage {
			t.Errorf("waited for %v, and it was written after %v", took, salvage)
		}
	})
}
