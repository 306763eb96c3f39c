package dispatch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// TestLaneGivesBackAggregatesInTheQueue: when a destination turns out to be down, the first job of
// an aggregate that waits for a worker is released with all jobs behind it.
func TestLaneGivesBackAggregatesInTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := testLane()
		cfg.Concurrency = 1
		l := newTestLane(delivery.HandlerFunc(func(context.Context, *delivery.Event) error {
			time.Sleep(time.Millisecond) //nolint:forbidigo // of the bubble
			return delivery.Unavailable(errors.New("down"))
		}), cfg)
		l.Own(func() {})
		events := []delivery.Event{{ID: 1}, {ID: 2}, {ID: 3}, {ID: 4}}
		keys := []Key{testKey(1, 1), testKey(2, 2), testKey(2, 2), {}}
		all := make([]Delivery, len(events))
		for i := range events {
			all[i] = Delivery{Event: &events[i], Key: keys[i]}
		}
		if n := l.Reserve(Request{N: len(all)}); n != len(all) {
			t.Fatalf("room for %d", n)
		}
		p := NewBatch(func() bool { return true }, func(bool) {})
		p.Fill(all)
		l.Deliver(p, nil)
		l.goroutines.Wait()
		_, answers, left := p.Take()
		if left > 0 || len(answers) != len(all) {
			t.Fatalf("%d of %d are answered, %d are left", len(answers), len(all), left)
		}
		for _, a := range answers {
			want := VerdictReleased
			if a.Event.ID == 1 {
				want = VerdictQuarantined
			}
			if a.Verdict != want {
				t.Errorf("event %d: verdict %d", a.Event.ID, a.Verdict)
			}
		}
		l.drop()
		if l.agg.Len() > 0 || l.load != 0 || l.agg.Waiting() != 0 {
			t.Errorf("%d queues, %d jobs and %d behind others are left", l.agg.Len(), l.load, l.agg.Waiting())
		}
	})
}

// TestLaneIsWellThoughAnEngineAsks: a destination that has answered a probe is well after a while,
// even if its engine only requests room and hands nothing over.
func TestLaneIsWellThoughAnEngineAsks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down := true
		l := newTestLane(delivery.HandlerFunc(func(context.Context, *delivery.Event) error {
			if down {
				return delivery.Unavailable(errors.New("down"))
			}
			return nil
		}), testLane())
		defer l.drop()
		l.Own(func() {})
		deliver := func(id int64) {
			if n := l.Reserve(Request{N: 1}); n != 1 {
				t.Fatalf("room for %d", n)
			}
			spills := l.Order(Key{}).Returned
			l.GoOn(spills)
			p := NewBatch(func() bool { return true }, func(bool) {})
			p.Fill([]Delivery{{Event: &delivery.Event{ID: id}}})
			l.Deliver(p, nil)
			l.goroutines.Wait()
		}
		deliver(1)
		down = false
		time.Sleep(time.Second) //nolint:forbidigo // the pause, in the bubble
		deliver(1)
		for began := time.Now(); time.Since(began) < 3*rampCalm; {
			l.Return(l.Reserve(Request{N: 10}))
			time.Sleep(rampCalm / 10) //nolint:forbidigo // of the bubble
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.health.Available() {
			t.Errorf("the health is %+v", l.health)
		}
	})
}
