package redis

import (
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// BenchmarkDeliverBatch adds batches of 1000 events; copies has each event come a
// second time. The figure is deliveries per second. The stream is kept short.
func BenchmarkDeliverBatch(b *testing.B) {
	const batch = 1000
	for name, c := range map[string]struct {
		window, copies int
	}{
		"plain":       {0, 1},
		"deduplicate": {100_000, 1},
		"copies":      {100_000, 2},
	} {
		b.Run(name, func(b *testing.B) {
			place := testenv.Redis(b)
			h := open(b, place.URL, to(place.Name+name), func(cfg *Config) { cfg.MaxLen, cfg.Deduplicate = 100_000, c.window })
			all := events(deliverytest.UpTo(batch)...)
			n := 0
			for b.Loop() {
				for _, e := range all {
					e.ID += batch
				}
				for range c.copies {
					deliverytest.Deliver(b, h, all)
					n += batch
				}
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
