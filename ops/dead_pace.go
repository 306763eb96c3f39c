package ops

import (
	"context"
	"math"
	"time"

	"github.com/notifyd/notifyd/internal/sleep"
)

// smooth is the largest number of batches per second of a limited action: at 100 letters a second,
// ten at a time.
const smooth = 10

// inBatches calls do with the size of a batch until it does less than that, or fails. It keeps to
// the rate: after n letters the next batch begins n/rate seconds after the start of this one. It
// does not make up for a slow database, so that no second sees more than the rate and one batch.
func inBatches(ctx context.Context, a BulkAction, do func(n int) (done int, err error)) error {
	n := a.Batch
	if n == 0 {
		n = defaultBatch
	}
	if a.Rate > 0 {
		n = max(1, min(n, int(math.Min(MaxBatch, a.Rate/smooth))))
	}

	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}

		begin := time.Now()
		done, err := do(n)
		if err != nil || done < n {
			return err
		}
		if a.Rate > 0 {
			sleep.For(ctx, pause(done, a.Rate)-time.Since(begin))
		}
	}
}

// pause is how long n letters take at a rate. The rate may be too low for a Duration.
func pause(n int, rate float64) time.Duration {
	const longest = math.MaxInt64 / 2
	return time.Duration(math.Min(longest, float64(n)/rate*float64(time.Second)))
}
