package bench

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

// percentile returns the smallest value that at least the share p of all values does not exceed, or 0 without values.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	// The subtraction corrects rounding: 0.9*10 is above 9.
	i := int(math.Ceil(float64(len(sorted))*p-1e-9)) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// median returns the middle value, or the mean of the two in the middle.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}

// ratio returns a/b, or 0 if b is 0.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// round rounds to a number of decimals: more would suggest false precision.
func round(v float64, decimals int) float64 {
	scale := math.Pow10(decimals)
	return math.Round(v*scale) / scale
}

// ms returns d in milliseconds, rounded to the microsecond.
func ms(d time.Duration) float64 { return round(milliseconds(d), 3) }

// histogram counts times in buckets that are 1/128 of their value wide, so that memory
// does not grow with the run. Its zero value is empty.
type histogram struct {
	counts [(64 - subBits + 1) << subBits]uint32
	total  uint64
	max    time.Duration
}

// subBits is the logarithm of the number of buckets per power of two.
const subBits = 7

func (h *histogram) add(d time.Duration) {
	d = max(d, 0)
	h.counts[bucket(d)]++
	h.total++
	h.max = max(h.max, d)
}

// bucket returns the bucket of d: d while it is small, else computed from its highest bit and the subBits below that.
func bucket(d time.Duration) int {
	v := uint64(d) //nolint:gosec // add has made it positive
	shift := bits.Len64(v) - subBits - 1
	if shift <= 0 {
		return int(v) //nolint:gosec // below 2^(subBits+1)
	}
	return shift<<subBits + int(v>>shift) //nolint:gosec // below 2^(subBits+1)
}

// highest returns the largest value that is counted in bucket i.
func highest(i int) time.Duration {
	shift := i>>subBits - 1
	if shift <= 0 {
		return time.Duration(i)
	}
	return time.Duration((i-shift<<subBits+1)<<shift - 1)
}

// percentile returns a percentile that is never below the exact one, and less than 1 % above it.
func (h *histogram) percentile(p float64) time.Duration {
	rank := max(1, uint64(math.Ceil(float64(h.total)*p-1e-9)))
	var seen uint64
	for i, n := range h.counts {
		if seen += uint64(n); seen >= rank {
			return min(highest(i), h.max)
		}
	}
	return h.max
}

// extremes returns the lowest and the highest value.
func extremes(values []float64) (low, high float64) {
	if len(values) == 0 {
		return 0, 0
	}
	return slices.Min(values), slices.Max(values)
}
