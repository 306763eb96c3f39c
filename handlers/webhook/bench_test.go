package webhook

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// BenchmarkBatch delivers the same events in single requests and in batches of 100, with the concurrency of the default
// lane, to a receiver that takes some time for a request. The ratio is of the rates of one run.
func BenchmarkBatch(b *testing.B) {
	const size, calls = 100, 64
	for _, takes := range []time.Duration{0, 5 * time.Millisecond} {
		b.Run(fmt.Sprintf("receiver=%v", takes), func(b *testing.B) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if takes > 0 {
					<-time.After(takes)
				}
				w.WriteHeader(http.StatusNoContent)
			}))
			b.Cleanup(server.Close)
			cfg := Config{URL: server.URL, SigningSecrets: secrets(oldSecret)}
			single := deliverytest.Open(b, New, cfg)
			cfg.BatchFormat = BatchCloudEvents
			batch := deliverytest.Open(b, NewBatch, cfg)
			events := deliverytest.Spread("hook", deliverytest.UpTo(size)...)
			alone, together := time.Duration(0), time.Duration(0)
			for b.Loop() {
				alone += concurrently(calls, func() {
					for _, e := range events {
						if err := single.Deliver(b.Context(), e); err != nil {
							b.Error(err)
						}
					}
				})
				together += concurrently(calls, func() {
					if errs := batch.DeliverBatch(b.Context(), events); errs != nil {
						b.Error(errs)
					}
				})
			}
			n := float64(b.N * size * calls)
			b.ReportMetric(n/alone.Seconds(), "single-events/s")
			b.ReportMetric(n/together.Seconds(), "batch-events/s")
			b.ReportMetric(alone.Seconds()/together.Seconds(), "ratio")
		})
	}
}

// concurrently returns how long n calls take, with as many at a time as the default lane has.
func concurrently(n int, call func()) time.Duration {
	began := time.Now()
	next := make(chan struct{}, n)
	for range n {
		next <- struct{}{}
	}
	close(next)
	var all sync.WaitGroup
	for range DefaultLane().Concurrency {
		all.Go(func() {
			for range next {
				call()
			}
		})
	}
	all.Wait()
	return time.Since(began)
}
