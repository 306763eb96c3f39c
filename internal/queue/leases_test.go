package queue

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/deliveries"
)

// smallMaintenance refuses transactions that are too large, and one more.
type smallMaintenance struct {
	LeaseStore
	refuse int // the transaction to refuse, from 1
	calls  int
	put    map[int64]int
}

func (k *smallMaintenance) Finish(_ context.Context, done, put []deliveries.Entry) (int, error) {
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

// TestManyAnswers: a flood of late answers is written in parts, and each of them once, even if a
// part fails.
func TestManyAnswers(t *testing.T) {
	t.Parallel()
	const n = 3*maxFinish + 1
	k := &smallMaintenance{refuse: 2, put: make(map[int64]int)}
	ls := newLeases(k, time.Minute, slog.New(slog.DiscardHandler))
	ls.report, ls.retryIn = func(string, error) {}, func(time.Duration) {}
	for id := range int64(n) {
		ls.results = append(ls.results, lateResult{entry: deliveries.Entry{Ref: deliveries.Ref{EventID: id}}, delivered: id%2 == 0})
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

// stoppedMaintenance refuses calls after the end of ctx, as the real one does.
type stoppedMaintenance struct {
	LeaseStore
	stop func() // called by the first transaction
}

func (k *stoppedMaintenance) Finish(ctx context.Context, _, _ []deliveries.Entry) (int, error) {
	k.stop()
	return 0, ctx.Err()
}

func (k *stoppedMaintenance) Renew(ctx context.Context, _ []int64) error { return ctx.Err() }

// TestStopIsNoOutage: a relay that stops while it writes answers or renews leases does not report
// that the database is unavailable.
func TestStopIsNoOutage(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	ls := newLeases(&stoppedMaintenance{stop: cancel}, time.Minute, slog.New(slog.DiscardHandler))
	reports := 0
	ls.report, ls.retryIn = func(string, error) { reports++ }, func(time.Duration) {}
	ls.live[1] = &lease{until: time.Now().Add(time.Hour)}
	ls.results = make([]lateResult, maxFinish+1)
	if err := ls.flush(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("flush() = %v", err)
	}
	ls.renew(ctx)
	if reports != 0 {
		t.Errorf("%d reports", reports)
	}
}

// TestRenewalIsAcceptedAgain: a refusal to renew leases is over when the database accepts it, although
// all leases have ended in the meantime.
func TestRenewalIsAcceptedAgain(t *testing.T) {
	t.Parallel()
	k := &renewing{err: refusal{}}
	ls := newLeases(k, time.Minute, slog.New(slog.DiscardHandler))
	var last error
	ls.report = func(_ string, err error) { last = err }
	ls.live[1] = &lease{until: time.Now().Add(time.Hour)}
	if ls.renew(t.Context()); last == nil {
		t.Fatal("the refusal is not reported")
	}
	clear(ls.live)
	if ls.renew(t.Context()); last == nil {
		t.Error("it is over although the database refuses still")
	}
	k.err = nil
	for range 2 {
		ls.renew(t.Context())
	}
	if last != nil || k.calls != 3 {
		t.Errorf("after %d renewals: %v", k.calls, last)
	}
}

// renewing is asked to renew leases.
type renewing struct {
	LeaseStore
	err   error
	calls int
}

func (k *renewing) Renew(context.Context, []int64) error {
	k.calls++
	return k.err
}
