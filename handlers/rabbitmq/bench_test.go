package rabbitmq_test

import (
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// BenchmarkDeliverBatch publishes persistent messages of some 200 bytes, each
// confirmed: the figure is messages per second. A consumer keeps the queue short,
// as in life.
func BenchmarkDeliverBatch(b *testing.B) {
	for _, c := range []struct {
		name              string
		args              amqp.Table
		batch, concurrent int
		strict            bool
	}{
		{"classic/100x1", nil, 100, 1, false},
		{"classic/500x1", nil, 500, 1, false},
		{"classic/1000x1", nil, 1000, 1, false},
		{"classic/500x2", nil, 500, 2, false},
		{"classic/500x4", nil, 500, 4, false},
		{"quorum/500x1", amqp.Table{"x-queue-type": "quorum"}, 500, 1, false},
		{"quorum/500x4", amqp.Table{"x-queue-type": "quorum"}, 500, 4, false},
		{"strict/500x1", nil, 500, 1, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			url := testenv.RabbitMQ(b).URL
			broker{b, url}.queue("q", c.args)
			drain(b, url)
			cfg := to(url, "q")
			cfg.StrictOrder = c.strict
			h := open(b, cfg)
			batch := events(1, int64(c.batch))
			if errs := h.DeliverBatch(b.Context(), batch); errs != nil {
				b.Fatal(errs)
			}
			var wg sync.WaitGroup
			work := make(chan struct{}, b.N)
			for range b.N {
				work <- struct{}{}
			}
			close(work)
			b.ResetTimer()
			for range c.concurrent {
				wg.Go(func() {
					for range work {
						if errs := h.DeliverBatch(b.Context(), batch); errs != nil {
							b.Error(errs)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N*c.batch)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

// drain consumes the queue until the benchmark is over.
func drain(b *testing.B, url string) {
	b.Helper()
	ch := broker{b, url}.channel()
	if err := ch.Qos(1000, 0, false); err != nil {
		b.Fatal(err)
	}
	// Without the context of the benchmark: that ends before the cleanup, and its
	// basic.cancel beside the channel's close leaves one of the two without an answer.
	got, err := ch.Consume("q", "", false, false, false, false, nil)
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		n := 0
		for d := range got {
			if n++; n%500 == 0 {
				_ = d.Ack(true)
			}
		}
	})
	b.Cleanup(func() { _ = ch.Close(); wg.Wait() })
}
