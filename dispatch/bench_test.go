package dispatch

import (
	"context"
	"sync"
	"testing"

	"github.com/notifyd/notifyd/delivery"
)

// BenchmarkLane hands over batches of 1,000 deliveries to a handler that takes no time: what a lane
// itself costs an event.
func BenchmarkLane(b *testing.B) {
	const size = 1000
	one := delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil })
	for name, c := range map[string]struct {
		h     delivery.Handler
		owned bool
	}{
		"queue":  {one, false},
		"stream": {one, true},
		"batch":  {delivery.BatchHandlerFunc(func(context.Context, []*delivery.Event) []error { return nil }), false},
	} {
		b.Run(name, func(b *testing.B) {
			l := newTestLane(c.h, testLane())
			if c.owned {
				l.Own(func() {})
			}
			events := make([]delivery.Event, size)
			all := make([]Delivery, size)
			for i := range all {
				events[i].ID = int64(i + 1)
				all[i].Event = &events[i]
				if c.owned {
					all[i].Key = testKey(uint64(i%100), 1)
				}
			}
			var last sync.WaitGroup
			p := NewBatch(func() bool { return true }, func(is bool) {
				if is {
					last.Done()
				}
			})
			b.ReportAllocs()
			for b.Loop() {
				l.mu.Lock()
				l.load += size
				l.mu.Unlock()
				last.Add(1)
				p.Fill(append(p.Alloc(size), all...))
				l.Deliver(p, nil)
				last.Wait()
				p.Take()
				p.Empty()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*size), "ns/event")
		})
	}
}
