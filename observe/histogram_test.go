package observe

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestHistogram: each duration is in the first bucket that is long enough.
func TestHistogram(t *testing.T) {
	t.Parallel()
	bounds := LatencyBounds()
	rapid.Check(t, func(t *rapid.T) {
		var h Histogram
		all := rapid.SliceOf(rapid.OneOf(rapid.Int64Range(-1e6, 2e11), rapid.SampledFrom([]int64{250_000, 250_001, 60e9, 60e9 + 1, 0}))).Draw(t, "durations")
		var want Histogram
		for _, n := range all {
			d := time.Duration(n)
			h.Observe(d)
			d = max(0, d)
			want.Count++
			want.Sum += d
			for i, bound := range bounds {
				if d <= bound {
					want.Buckets[i]++
					break
				}
			}
		}
		if h != want {
			t.Fatalf("%v: got %v, want %v", all, h, want)
		}
	})
}
