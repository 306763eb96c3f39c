package dispatch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// callBook is a [Calls] in memory.
type callBook struct {
	mu    sync.Mutex
	calls map[int64]int // by event
	err   error
}

func (b *callBook) Begin(_ context.Context, event int64, _ string, _ int) (calls int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if calls = b.calls[event]; calls == 0 && b.err == nil {
		b.calls[event] = 1
	}
	return calls, b.err
}

func (b *callBook) Set(_ context.Context, event int64, _ string, calls int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.calls[event] = calls; calls == 0 {
		delete(b.calls, event)
	}
	return b.err
}

func (b *callBook) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return fmt.Sprint(b.calls)
}

// recordedLane is a lane that records calls with large events: those with ids below 100. It notes each call, with the attempt and the
// records that it found.
type recordedLane struct {
	*lane

	book callBook
	mu   sync.Mutex
	seen []string
}

// newRecordedLane returns a lane whose handler does the same with each event, in one call with others if batch is set.
func newRecordedLane(batch bool, calls map[int64]int, do func(context.Context, *delivery.Event) error) *recordedLane {
	r := &recordedLane{book: callBook{calls: calls}}
	one := delivery.HandlerFunc(func(ctx context.Context, e *delivery.Event) error {
		r.saw(fmt.Sprintf("%d, attempt %d, %s", e.ID, e.Attempt, &r.book))
		return do(ctx, e)
	})
	r.lane = newTestLane(one, testLane())
	if batch {
		r.target = newTarget(together{one, r}, testLane())
	}
	r.calls, r.turns = &r.book, newTurns()
	return r
}

func (r *recordedLane) saw(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, text)
}

// together takes several events in a call.
type together struct {
	delivery.Handler

	r *recordedLane
}

func (b together) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	b.r.saw(fmt.Sprintf("%d together", len(events)))
	errs := make([]error, len(events))
	for i, e := range events {
		errs[i] = b.Deliver(ctx, e)
	}
	return errs
}

// hand hands events to the lane, which had failures before.
func (r *recordedLane) hand(failures int, ids ...int64) *Batch {
	p := NewBatch(func() bool { return true }, func(bool) {})
	all := make([]Delivery, len(ids))
	for i, id := range ids {
		e := &delivery.Event{ID: id, Type: "x", Attempt: failures + 1}
		if id < 100 {
			e.Payload = make([]byte, largeEvent)
		}
		all[i] = Delivery{Event: e, Failures: failures, Row: true}
	}
	r.Reserve(Request{N: len(all)})
	p.Fill(all)
	r.Deliver(p, nil)
	return p
}

// TestRecordedCalls: a call with a large event is recorded before it begins, and the record tells the next one how many processes ended.
func TestRecordedCalls(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	for name, c := range map[string]struct {
		before   map[int64]int
		failures int
		most     int // max_attempts, if it is not 3
		err      error
		refused  error // of the record
		seen     string
		verdict  Verdict
		counted  int
		left     string
	}{
		"delivered":                 {seen: "1, attempt 1, map[1:1]", verdict: VerdictDelivered, left: "map[]"},
		"failed":                    {err: failed, seen: "1, attempt 1, map[1:1]", verdict: VerdictFailed, counted: 1, left: "map[]"},
		"delivered after one":       {before: map[int64]int{1: 1}, seen: "1, attempt 2, map[1:2]", verdict: VerdictDelivered, counted: 1, left: "map[]"},
		"failed after one":          {before: map[int64]int{1: 1}, err: failed, seen: "1, attempt 2, map[1:2]", verdict: VerdictFailed, counted: 2, left: "map[]"},
		"after all attempts":        {before: map[int64]int{1: 3}, verdict: VerdictDead, counted: 3, left: "map[1:3]"},
		"after a failure and two":   {before: map[int64]int{1: 2}, failures: 1, verdict: VerdictDead, counted: 3, left: "map[1:2]"},
		"the only attempt":          {before: map[int64]int{1: 1}, most: 1, seen: "1, attempt 2, map[1:2]", verdict: VerdictDelivered, counted: 1, left: "map[]"},
		"after two, of one attempt": {before: map[int64]int{1: 2}, most: 1, verdict: VerdictDead, counted: 2, left: "map[1:2]"},
		"the record is refused":     {refused: failed, seen: "1, attempt 1, map[]", verdict: VerdictDelivered, left: "map[]"},
		"it must wait": {
			before: map[int64]int{1: 1}, err: delivery.Unavailable(failed), seen: "1, attempt 2, map[1:2]", verdict: VerdictQuarantined, counted: 1, left: "map[]",
		},
	} {
		for _, batch := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s %v", name, batch), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					before := make(map[int64]int)
					maps.Copy(before, c.before)
					r := newRecordedLane(batch, before, func(context.Context, *delivery.Event) error { return c.err })
					defer r.drop()
					r.book.err = c.refused
					if c.most > 0 {
						r.dest.MaxAttempts = c.most
					}
					p := r.hand(c.failures, 1)
					synctest.Wait()
					_, answers, _ := p.Take()
					if a := &answers[0]; a.Verdict != c.verdict || a.Failures != c.counted {
						t.Errorf("verdict %d, %d failures: %v", a.Verdict, a.Failures, a.Err)
					}
					seen := strings.TrimPrefix(strings.Join(r.seen, "; "), "1 together; ")
					if left := r.book.String(); seen != c.seen || left != c.left {
						t.Errorf("the handler saw %q, left is %s", seen, left)
					}
				})
			})
		}
	}
}

// TestInterruptedRecordedCall: a call that the end of the relay interrupts loses no attempt, and the event keeps those of other processes.
func TestInterruptedRecordedCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecordedLane(false, map[int64]int{1: 1}, takes(time.Hour))
		ctx, stop := context.WithCancel(t.Context())
		r.ctx = ctx
		p := r.hand(0, 1)
		synctest.Wait()
		stop()
		synctest.Wait()
		_, answers, _ := p.Take()
		if a := &answers[0]; a.Verdict != VerdictReleased || a.Failures != 0 || a.Event.Attempt != 1 || r.book.String() != "map[1:1]" {
			t.Errorf("%+v, left is %s", a, &r.book)
		}
	})
}

// TestLargeEventsInCalls: a large event shares no call. Others wait while an event is called alone, and small ones do not.
func TestLargeEventsInCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecordedLane(true, make(map[int64]int), takes(0))
		defer r.drop()
		r.hand(0, 101, 1, 102, 103, 2)
		synctest.Wait()
		if slices.Sort(r.seen); len(r.seen) != 9 || !slices.Equal(r.seen[:2], []string{"1 together", "1 together"}) && !slices.Contains(r.seen, "2 together") {
			t.Errorf("%q", r.seen)
		}
		for _, text := range r.seen {
			if strings.HasPrefix(text, "3 together") {
				t.Errorf("%q", r.seen)
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		running, large := 0, 0
		var mu sync.Mutex
		r := newRecordedLane(false, map[int64]int{3: 1, 4: 1}, func(ctx context.Context, e *delivery.Event) error {
			mu.Lock()
			running++
			if e.ID < 100 {
				large++
			}
			if e.ID == 3 || e.ID == 4 {
				if large != 1 {
					t.Errorf("%d large events in flight beside %d", large-1, e.ID)
				}
			}
			mu.Unlock()
			err := takes(time.Second)(ctx, e)
			mu.Lock()
			defer mu.Unlock()
			if running--; e.ID < 100 {
				large--
			}
			return err
		})
		defer r.drop()
		p := r.hand(0, 1, 2, 3, 4, 5, 101, 102)
		<-time.After(time.Minute)
		_, answers, left := p.Take()
		if left > 0 || len(answers) != 7 {
			t.Errorf("%d answers, %d left", len(answers), left)
		}
		for _, a := range answers {
			if a.Verdict != VerdictDelivered && !errors.Is(a.Err, errTurn) {
				t.Errorf("%+v", a)
			}
		}
	})
}

// TestStuckRecordedCall: a call that does not return ends its turn and its record when it is given up.
func TestStuckRecordedCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		r := newRecordedLane(false, map[int64]int{1: 1}, func(_ context.Context, e *delivery.Event) error {
			if e.ID == 1 {
				<-end
			}
			return nil
		})
		defer r.drop()
		first := r.hand(0, 1)
		<-time.After(r.workers.chunkLimit() + watchAgain)
		second := r.hand(0, 2)
		synctest.Wait()
		for p, want := range map[*Batch]Verdict{first: VerdictFailed, second: VerdictDelivered} {
			if _, answers, _ := p.Take(); len(answers) != 1 || answers[0].Verdict != want {
				t.Errorf("%+v, want verdict %d", answers, want)
			}
		}
		if left := r.book.String(); left != "map[]" {
			t.Errorf("left is %s", left)
		}
		close(end)
	})
}

// TestTurnIsKept: events that come one after the other do not keep one that is to be alone from its turn.
func TestTurnIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		if !turns.begin(t.Context(), false) || turns.begin(t.Context(), true) {
			t.Fatal("no turn for the first, or one beside it")
		}
		if turns.begin(t.Context(), false) {
			t.Error("another one went first")
		}
		turns.end(false)
		if !turns.begin(t.Context(), true) {
			t.Fatal("no turn although none is taken")
		}
		turns.end(true)
		if !turns.begin(t.Context(), false) {
			t.Error("no turn after it")
		}
	})
}
