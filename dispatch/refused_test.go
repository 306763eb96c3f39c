package dispatch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/notifyd/notifyd/delivery"
)

// TestRefused: the lane buries an event that must not be delivered without a call of the handler,
// and delivers the others, in any number per call.
func TestRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, ordered := range []bool{false, true} {
			for _, batch := range []bool{false, true} {
				var c met
				var h delivery.Handler = &c
				if batch {
					h = &metAtOnce{&c}
				}
				l := newTestLane(h, testLane())
				if ordered {
					l.agg = newQueues(&l.dest, &l.target)
				}
				tooLarge := errors.New("too large")
				p := NewBatch(func() bool { return true }, func(bool) {})
				all := make([]Delivery, 20)
				for i := range all {
					all[i] = Delivery{Event: &delivery.Event{ID: int64(i + 1), Type: "x"}, Key: testKey(1, uint64(i/10))}
					if i%7 == 3 {
						all[i].Refused = tooLarge
					}
				}
				l.Reserve(Request{N: len(all)})
				p.Fill(all)
				l.Deliver(p, nil)
				l.goroutines.Wait()
				delivered, answers, left := p.Take()
				if delivered != 17 || len(answers) != 3 || left != 0 {
					t.Errorf("ordered %v, batch %v: %d delivered, %d other answers, %d left", ordered, batch, delivered, len(answers), left)
				}
				for _, a := range answers {
					if a.Verdict != VerdictDead || !errors.Is(a.Err, tooLarge) || a.Class != delivery.ClassEvent {
						t.Errorf("ordered %v, batch %v: %+v", ordered, batch, a)
					}
				}
				if slices.Sort(c.ids); len(c.ids) != 17 || slices.Contains(c.ids, 4) || slices.Contains(c.ids, 11) || slices.Contains(c.ids, 18) {
					t.Errorf("ordered %v, batch %v: the handler got %v", ordered, batch, c.ids)
				}
			}
		}
	})
}

// TestRefusedProvesNothing: the burial of an event is no answer of a destination that is down.
func TestRefusedProvesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down := delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return delivery.Unavailable(errors.New("down")) })
		l := newTestLane(down, testLane())
		deliver := func(d Delivery) Verdict {
			p := NewBatch(func() bool { return true }, func(bool) {})
			d.Event = &delivery.Event{ID: 1, Type: "x"}
			l.load++
			p.Fill([]Delivery{d})
			l.Deliver(p, nil)
			l.goroutines.Wait()
			_, answers, _ := p.Take()
			return answers[0].Verdict
		}
		if v := deliver(Delivery{}); v != VerdictQuarantined {
			t.Fatalf("verdict %d of an event of a destination that is down", v)
		}
		if v := deliver(Delivery{Refused: errors.New("too large")}); v != VerdictDead {
			t.Errorf("verdict %d of the refused event", v)
		}
		if !l.health.Down() {
			t.Error("the destination is believed to work")
		}
		l.drop()
	})
}

// met notes the events that it gets, and metAtOnce takes several.
type met struct {
	mu  sync.Mutex
	ids []int64
}

func (m *met) Deliver(_ context.Context, e *delivery.Event) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ids = append(m.ids, e.ID)
	return nil
}

type metAtOnce struct{ *met }

func (m *metAtOnce) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	for _, e := range events {
		_ = m.Deliver(ctx, e)
	}
	return nil
}
