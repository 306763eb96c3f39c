package dispatch

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
)

// deaf is a handler that ignores the end of its context for events with a small id, until the test
// releases it, and then reports a delivery.
type deaf struct {
	calls

	few  int64
	over chan struct{}
}

func (d *deaf) Deliver(ctx context.Context, e *delivery.Event) error {
	return d.calls.handler(func(context.Context, *delivery.Event) error {
		if e.ID <= d.few {
			<-d.over
		}
		return nil
	}).Deliver(ctx, e)
}

type deafToBatches struct{ *deaf }

func (d deafToBatches) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	for _, e := range events {
		if err := d.Deliver(ctx, e); err != nil {
			return []error{err}
		}
	}
	return nil
}

// overheard is an observer and a log that remember all calls.
type overheard struct {
	mu   sync.Mutex
	text bytes.Buffer
	all  []delivery.Incident
}

func (o *overheard) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *overheard) Observe(i delivery.Incident) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, i)
}

func (o *overheard) kinds() (kinds []delivery.IncidentKind) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, i := range o.all {
		kinds = append(kinds, i.Kind)
	}
	return kinds
}

func (o *overheard) logged(text string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Count(o.text.String(), text)
}

func overheardLog(o *overheard) *slog.Logger { return slog.New(slog.NewTextHandler(o, nil)) }

func overheardLane(h delivery.Handler, cfg LaneConfig) (*lane, *overheard) {
	o := &overheard{}
	l := newTestLane(h, cfg)
	l.log, l.observer = overheardLog(o), o
	return l, o
}

// verdictCounts counts verdicts.
type verdictCounts [VerdictExpired + 1]int

// verdicts counts the answers by verdict.
func verdicts(t *testing.T, p *Batch) (all verdictCounts, left int) {
	t.Helper()
	n, answers, left := p.Take()
	all[VerdictDelivered] = n
	for i := range answers {
		if answers[i].Verdict != VerdictDelivered {
			all[answers[i].Verdict]++
		}
	}
	return all, left
}

// TestLaneReplacesWorkersThatDoNotReturn: all workers of a lane are in calls that ignore their
// context. Their events have failed, with one attempt each, other workers take their place, and
// their answers are ignored when they do return.
func TestLaneReplacesWorkersThatDoNotReturn(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]bool{"one by one": false, "batches": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg := testLane()
				cfg.Concurrency, cfg.Batch = 4, 1
				d := &deaf{few: 4, over: make(chan struct{})}
				var h delivery.Handler = d
				if batch {
					h = deafToBatches{d}
				}
				l, o := overheardLane(h, cfg)
				p := claimOf(l, 20)
				after(cfg.Timeout + returnGrace - time.Millisecond)
				if all, left := verdicts(t, p); left != 20 {
					t.Fatalf("answers before the grace is over: %v", all)
				}
				after(2 * time.Millisecond)
				if all, left := verdicts(t, p); all[VerdictFailed] != 4 || all[VerdictDelivered] != 16 || left != 0 {
					t.Fatalf("answers %v, %d have none", all, left)
				}
				if s := l.stats(); s.Stuck != 4 || s.Running != 0 || s.Down || s.Capacity == 0 || s.Failed != 4 {
					t.Errorf("%+v", s)
				}
				if n := o.logged("has not returned 5s after the end of its context"); n != 4 {
					t.Errorf("said %d times", n)
				}
				close(d.over)
				l.goroutines.Wait()
				if s := l.stats(); s.Stuck != 0 || s.Delivered != 16 || l.load != 0 {
					t.Errorf("after they have returned: %+v", s)
				}
				if n := o.logged("its answer is ignored"); n != 4 {
					t.Errorf("logged %d times that they have returned", n)
				}
			})
		})
	}
}

// after lets time pass in a bubble, until all goroutines are blocked.
func after(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // of the bubble
	synctest.Wait()
}

// TestLaneIsStuck: a lane bears as many calls that do not return as its concurrency, in addition to
// the running ones. With more it begins nothing, gives back the waiting jobs, and reports it.
func TestLaneIsStuck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := testLane()
		cfg.Concurrency = 2
		d := &deaf{few: 1000, over: make(chan struct{})}
		l, o := overheardLane(d, cfg)
		woken := 0
		l.onCapacity = func() { woken++ }
		p := claimOf(l, 10)
		for _, stuck := range []int{2, 4} {
			after(l.workers.chunkLimit() + time.Millisecond)
			if n := l.stats().Stuck; n != stuck {
				t.Fatalf("%d are stuck, want %d", n, stuck)
			}
		}
		after(time.Hour)
		if n := d.n.Load(); n != 4 {
			t.Errorf("%d calls, want 4", n)
		}
		if all, left := verdicts(t, p); all[VerdictFailed] != 4 || all[VerdictReleased] != 6 || left != 0 {
			t.Errorf("answers %v, %d have none", all, left)
		}
		if s := l.stats(); !s.Down || s.Capacity != 0 || l.Reserve(Request{N: 1}) != 0 {
			t.Errorf("%+v", s)
		}
		if n := o.logged("destination is stuck"); n != 1 {
			t.Errorf("said %d times", n)
		}
		close(d.over)
		l.goroutines.Wait()
		d.few = 0
		if s := l.stats(); s.Down || s.Stuck != 0 || woken == 0 {
			t.Errorf("after they have returned: %+v, woken %d times", s, woken)
		}
		if k := o.kinds(); len(k) != 2 || k[0] != delivery.IncidentDown || k[1] != delivery.IncidentUp {
			t.Errorf("incidents %v", k)
		}
		p = claimOf(l, cfg.Concurrency)
		l.goroutines.Wait()
		// Events whose calls failed slowly have half of the workers.
		if all, _ := verdicts(t, p); all[VerdictDelivered] != cfg.Concurrency/2 || all[VerdictQuarantined] != cfg.Concurrency/2 {
			t.Errorf("answers %v", all)
		}
	})
}

// TestLaneGoesOnAfterGoexit: a handler that ends its goroutine has failed, and costs the lane nothing else.
func TestLaneGoesOnAfterGoexit(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]bool{"one by one": false, "batches": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg := testLane()
				cfg.Concurrency, cfg.Batch = 1, 1
				one := delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
					if e.ID%3 == 0 {
						runtime.Goexit()
					}
					return nil
				})
				var h delivery.Handler = one
				if batch {
					h = delivery.BatchHandlerFunc(func(ctx context.Context, events []*delivery.Event) []error { return []error{one(ctx, events[0])} })
				}
				l, o := overheardLane(h, cfg)
				l.throughput.pace = time.Microsecond // a worker takes several
				p := claimOf(l, 30)
				l.goroutines.Wait()
				if all, left := verdicts(t, p); all[VerdictFailed] != 10 || all[VerdictDelivered] != 20 || left != 0 {
					t.Errorf("answers %v, %d have none", all, left)
				}
				if s := l.stats(); s.Running != 0 || s.Stuck != 0 || l.load != 0 || len(l.workers.all) != 0 {
					t.Errorf("%+v, %d workers", s, len(l.workers.all))
				}
				if n := o.logged("runtime.Goexit"); n != 10 {
					t.Errorf("said %d times", n)
				}
			})
		})
	}
}

// TestPatrolKeepsOrder: the jobs behind an event whose call does not return wait as behind any
// failed event, and the other jobs of its chunk continue with another worker.
func TestPatrolKeepsOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := testLane()
		cfg.Concurrency = 1
		d := &deaf{few: 1, over: make(chan struct{})}
		l, _ := overheardLane(d, cfg)
		l.throughput.pace = time.Microsecond
		l.Own(func() {})
		events := []delivery.Event{{ID: 1}, {ID: 2}, {ID: 3}, {ID: 4}}
		keys := []Key{testKey(1, 1), testKey(1, 1), testKey(2, 2), {}}
		all := make([]Delivery, len(events))
		for i := range events {
			all[i] = Delivery{Event: &events[i], Key: keys[i]}
		}
		l.Reserve(Request{N: len(all)})
		p := NewBatch(func() bool { return true }, func(bool) {})
		p.Fill(all)
		l.Deliver(p, nil)
		after(l.workers.chunkLimit() + time.Millisecond)
		n, answers, left := p.Take()
		if left != 0 || n != 2 || len(answers) != 2 {
			t.Fatalf("%d delivered, %d answers, %d left", n, len(answers), left)
		}
		for _, a := range answers {
			want := map[int64]Verdict{1: VerdictFailed, 2: VerdictParked}[a.Event.ID]
			if a.Verdict != want || a.Event.ID == 1 && (a.Failures != 1 || !errors.Is(a.Err, errStuck)) {
				t.Errorf("event %d: verdict %d after %d failures, %v", a.Event.ID, a.Verdict, a.Failures, a.Err)
			}
		}
		close(d.over)
		l.goroutines.Wait()
	})
}

// TestStuckLaneDeliversLaterJobs: an engine reserves capacity, then the last worker gets stuck, then the engine uses
// the capacity. When a call returns, a worker begins these deliveries.
func TestStuckLaneDeliversLaterJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := testLane()
		cfg.Concurrency = 1
		d := &deaf{few: 2, over: make(chan struct{})}
		l, _ := overheardLane(d, cfg)
		claimOf(l, 2)
		if l.Reserve(Request{N: 1}) != 1 {
			t.Fatal("no room")
		}
		after(2 * (l.workers.chunkLimit() + time.Millisecond))
		if s := l.stats(); !s.Down || s.Stuck != 2 {
			t.Fatalf("it is not stuck: %+v", s)
		}
		p := NewBatch(func() bool { return true }, func(bool) {})
		p.Fill([]Delivery{{Event: &delivery.Event{ID: 3, Type: "x"}}})
		l.Deliver(p, nil)
		close(d.over)
		after(time.Hour)
		if all, left := verdicts(t, p); all[VerdictDelivered] != 1 || left != 0 || l.load != 0 {
			t.Errorf("answers %v, %d have none, load %d", all, left, l.load)
		}
		l.goroutines.Wait()
	})
}

// TestLaneWithFewWorkersLeftHasCapacity: while one worker is left, the lane has capacity that is worth a claim.
func TestLaneWithFewWorkersLeftHasCapacity(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := testLane()
		cfg.Concurrency = 4 * fairPart
		few := 2*cfg.Concurrency - 1
		d := &deaf{few: int64(few), over: make(chan struct{})}
		l, _ := overheardLane(d, cfg)
		claimOf(l, few)
		after(2 * (l.workers.chunkLimit() + time.Millisecond))
		after(time.Second) // all calls have failed alike: the lane pauses before it probes
		if s := l.stats(); s.Stuck != few || s.Running != 0 || s.State != observe.BreakerProbing {
			t.Fatalf("%+v", s)
		}
		if l.Capacity(false) == 0 || l.Reserve(Request{N: 10, Once: true}) != 10 {
			t.Errorf("a worker is idle, and there is room for %d", l.Capacity(false))
		}
		close(d.over)
		l.goroutines.Wait()
	})
}

// TestWorkerThatHasEndedIsNotTakenOver: a goroutine that has ended does not touch its worker, which another goroutine may reuse.
func TestWorkerThatHasEndedIsNotTakenOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := testLane()
		cfg.Concurrency = 1
		l := newTestLane(delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
			if e.ID == 2 {
				runtime.Goexit()
			}
			return nil
		}), cfg)
		l.throughput.pace = time.Second // it is slow: the worker that ends frees capacity
		p, q := NewBatch(func() bool { return true }, func(bool) {}), NewBatch(func() bool { return true }, func(bool) {})
		exited := make(chan struct{})
		q.wake = func(bool) { close(exited) }
		l.onCapacity = func() { // the worker has ended, and its goroutine is here
			l.onCapacity = func() {}
			l.Reserve(Request{N: 1})
			q.Fill([]Delivery{{Event: &delivery.Event{ID: 2, Type: "x"}}})
			l.Deliver(q, nil)
			<-exited
		}
		l.Reserve(Request{N: 2}) // one more than there is room for
		p.Fill([]Delivery{{Event: &delivery.Event{ID: 1, Type: "x"}}})
		l.Deliver(p, nil)
		l.goroutines.Wait()
		if all, left := verdicts(t, q); all[VerdictFailed] != 1 || left != 0 {
			t.Fatalf("answers %v, %d have none", all, left)
		}
		if s := l.stats(); s.Stuck != 0 {
			t.Errorf("%d calls are stuck", s.Stuck)
		}
	})
}

// leaving is an observer that ends its goroutine.
type leaving struct{}

func (leaving) Observe(delivery.Incident) { runtime.Goexit() }

// TestObserverEndsItsGoroutine: that costs the lane neither a worker nor the answer for its event.
func TestObserverEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := testLane()
		cfg.Concurrency = 1
		l, o := overheardLane(delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return delivery.Permanent(errors.New("no")) }), cfg)
		l.observer = safeObserver{leaving{}, l.log}
		p := claimOf(l, 3)
		synctest.Wait()
		if all, left := verdicts(t, p); all[VerdictDead] != 3 || left != 0 {
			t.Errorf("answers %v, %d have none", all, left)
		}
		if s := l.stats(); s.Running != 0 || l.load != 0 {
			t.Errorf("%+v", s)
		}
		if n := o.logged("runtime.Goexit"); n != 3 {
			t.Errorf("logged %d times", n)
		}
	})
}

// TestNoAnswerOfAProbe: a handler that panics, or ends its goroutine, has not shown that the destination is up again. The
// attempt counts all the same: an event that makes the handler panic each time must not go round for ever.
func TestNoAnswerOfAProbe(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(){"panics": func() { panic("no") }, "ends its goroutine": runtime.Goexit} {
		for form, batch := range map[string]bool{"one by one": false, "batches": true} {
			t.Run(name+", "+form, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					cfg, first := testLane(), true
					one := delivery.HandlerFunc(func(context.Context, *delivery.Event) error {
						if first {
							first = false
							return delivery.Unavailable(errors.New("away"))
						}
						end()
						return nil
					})
					var h delivery.Handler = one
					if batch {
						h = delivery.BatchHandlerFunc(func(ctx context.Context, events []*delivery.Event) []error { return []error{one(ctx, events[0])} })
					}
					l, _ := overheardLane(h, cfg)
					claimOf(l, 1)
					l.goroutines.Wait()
					after(time.Second)
					p := claimOf(l, 1)
					l.goroutines.Wait()
					if s := l.stats(); !s.Down || s.State == observe.BreakerRamping {
						t.Errorf("the destination counts as up: %+v", s)
					}
					if _, answers, left := p.Take(); left != 0 || len(answers) != 1 || answers[0].Verdict != VerdictFailed || answers[0].Failures != 1 {
						t.Errorf("%+v, %d have no answer", answers, left)
					}
				})
			})
		}
	}
}
