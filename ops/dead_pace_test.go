package ops

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestRate: an action takes the time that its rate prescribes.
func TestRate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a     BulkAction
		total int
		work  time.Duration // of one batch
		sizes []int         // of the first batches
		takes time.Duration
	}{
		{BulkAction{}, 1200, time.Second, []int{500, 500, 200}, 3 * time.Second},
		{BulkAction{Batch: 7}, 14, 0, []int{7, 7, 0}, 0},
		{BulkAction{Rate: 100}, 1000, 0, []int{10, 10}, 10 * time.Second},
		{BulkAction{Rate: 100}, 1000, 60 * time.Millisecond, []int{10, 10}, 10*time.Second + 60*time.Millisecond}, // the last one finds nothing
		{BulkAction{Rate: 100}, 100, time.Second, []int{10, 10}, 11 * time.Second},                                // the database is slower than that
		{BulkAction{Rate: 3}, 6, 0, []int{1, 1}, 6 * time.Second / 3},
		{BulkAction{Rate: 0.5}, 4, 0, []int{1, 1}, 8 * time.Second},
		{BulkAction{Rate: 1e6}, 1000, 0, []int{500, 500, 0}, time.Millisecond},
		{BulkAction{Rate: 100, Batch: 1}, 100, 0, []int{1, 1}, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			begin, left := time.Now(), c.total
			var sizes []int
			err := inBatches(t.Context(), c.a, func(n int) (int, error) {
				time.Sleep(c.work) //nolint:forbidigo // the clock is the bubble's
				done := min(n, left)
				left -= done
				sizes = append(sizes, done)
				return done, nil
			})
			if took := time.Since(begin).Round(time.Microsecond); err != nil || left != 0 || took != c.takes || !slices.Equal(sizes[:len(c.sizes)], c.sizes) {
				t.Errorf("%+v: took %v, want %v; batches %v, want %v; %d left, %v", c.a, took, c.takes, sizes[:len(c.sizes)], c.sizes, left, err)
			}
		})
	}
}

func TestRateEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		begin, calls := time.Now(), 0
		err := inBatches(ctx, BulkAction{Rate: 1e-300}, func(int) (int, error) {
			calls++
			return 1, nil
		})
		if !errors.Is(err, context.DeadlineExceeded) || calls != 1 || time.Since(begin) != 90*time.Second {
			t.Errorf("%d calls, %v after %v", calls, err, time.Since(begin))
		}
		broken := errors.New("broken")
		if err := inBatches(t.Context(), BulkAction{Rate: 1}, func(int) (int, error) { return 0, broken }); !errors.Is(err, broken) {
			t.Errorf("%v", err)
		}
	})
}
