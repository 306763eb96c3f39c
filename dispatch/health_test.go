package dispatch

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/health"
)

// Durations and shares of package health that tests of lanes wait for.
const (
	rampCalm  = 5 * time.Second
	turnGrace = 100 * time.Millisecond
	fairPart  = 8
)

// TestBreakerIsProbedWithoutWhatIsStored: so many new deliveries were held back that it is the
// turn of what is stored, and there is nothing: a unit was given away with the breaker open, and
// comes back when another relay has delivered all that was stored.
func TestBreakerIsProbedWithoutWhatIsStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down := true
		l := newTestLane(delivery.HandlerFunc(func(context.Context, *delivery.Event) error {
			if down {
				return delivery.Unavailable(errors.New("down"))
			}
			return nil
		}), testLane())
		lane, id := l, int64(0)
		hand := func(key Key) {
			if lane.Reserve(Request{N: 1}) != 1 {
				t.Fatal("no room")
			}
			id++
			p := NewBatch(func() bool { return true }, func(bool) {})
			p.Fill([]Delivery{{Event: &delivery.Event{ID: id, Type: "x"}, Key: key}})
			lane.Deliver(p, nil)
			synctest.Wait()
		}
		lane.Own(func() {})
		hand(testKey(1, 1))
		after(time.Second)
		for range 64 { // as many as the breaker lets wait
			hand(testKey(1, 1)) // behind the first one
		}
		if !lane.Waits(false) {
			t.Fatal("it is not the turn of what is stored")
		}
		lane.Withdraw()
		down = false
		after(time.Minute)
		lane.Own(func() {})
		if lane.Waits(false) {
			t.Fatal("what is new waits for ever")
		}
		hand(testKey(2, 2))
		if s := l.stats(); s.Delivered != 1 || s.Down {
			t.Errorf("%+v", s)
		}
		l.drop()
		l.goroutines.Wait()
	})
}

// TestSuspectInAnOutage: the destination has failed over an event while it answered others. Then it is down, and no other event
// is tried: the event is not buried for that. It is when others are answered again and the event is not.
func TestSuspectInAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := testLane()
		down, poison := false, int64(1)
		l, o := overheardLane(delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
			if down || e.ID == poison {
				return delivery.Unavailable(errors.New("connection reset"))
			}
			return nil
		}), cfg)
		failures, dead := 0, false
		try := func(id int64) {
			t.Helper()
			for l.Reserve(Request{N: 1}) == 0 {
				after(time.Second)
			}
			p := NewBatch(func() bool { return true }, func(bool) {})
			d := Delivery{Event: &delivery.Event{ID: id, Type: "x"}}
			if id == poison {
				d.Failures = failures
			}
			p.Fill([]Delivery{d})
			l.Deliver(p, nil)
			l.goroutines.Wait()
			_, answers, _ := p.Take()
			for _, a := range answers {
				if id == poison {
					failures, dead = a.Failures, a.Verdict == VerdictDead
				}
			}
			after(time.Minute)
		}
		for failures == 0 {
			try(poison)
			try(2)
		}
		down = true
		for range 20 {
			try(poison)
		}
		if dead || failures >= cfg.MaxAttempts {
			t.Errorf("an outage has buried an event after %d failures: %v", failures, o.kinds())
		}
		down = false
		for n := 0; !dead; n++ {
			try(2)
			try(poison)
			if n > 20 {
				t.Fatalf("a poisoned event is never given up: %d failures", failures)
			}
		}
	})
}

// batches records the ids of each call.
type batches [][]int64

func (*batches) Deliver(context.Context, *delivery.Event) error { return errors.New("not in a batch") }

func (*batches) KeepsOrder() bool { return true }

func (b *batches) DeliverBatch(_ context.Context, events []*delivery.Event) []error {
	var ids []int64
	for _, e := range events {
		ids = append(ids, e.ID)
	}
	*b = append(*b, ids)
	return make([]error, len(events))
}

// TestQuarantinedBehindItsAggregateGoesAlone: a quarantined event shares no call, also where it comes as the successor of an
// earlier event of its aggregate.
func TestQuarantinedBehindItsAggregateGoesAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := testLane()
		cfg.Batch, cfg.Concurrency = 10, 1
		var calls batches
		l := newTestLane(&calls, cfg)
		defer l.drop()
		l.Own(func() {})
		l.mu.Lock()
		l.health.Decide(time.Now(), &health.Failed{
			Event: &delivery.Event{ID: 2}, Result: health.Result{Unavailable: true}, Err: delivery.Unavailable(errors.New("down")),
		})
		l.health.Responds(time.Now(), 1) // the destination is well, and the event is quarantined
		l.mu.Unlock()
		all := make([]Delivery, 4)
		for i := range all {
			all[i] = Delivery{Event: &delivery.Event{ID: int64(i + 1)}, Key: testKey(1, 1)}
		}
		if n := l.Reserve(Request{N: len(all)}); n != len(all) {
			t.Fatalf("room for %d", n)
		}
		p := NewBatch(func() bool { return true }, func(bool) {})
		p.Fill(all)
		l.Deliver(p, nil)
		l.goroutines.Wait()
		if got := fmt.Sprint(calls); got != "[[1] [2] [3 4]]" {
			t.Errorf("the calls have the events %s", got)
		}
	})
}
