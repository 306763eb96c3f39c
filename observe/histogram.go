package observe

import "time"

// latencyBuckets is the number of bounds of a [Histogram].
const latencyBuckets = 17

// LatencyBounds returns the upper bounds of a [Histogram]'s buckets, ascending from 0.25 ms to 60
// s. Durations above the last one are in Count only.
func LatencyBounds() [latencyBuckets]time.Duration {
	return [latencyBuckets]time.Duration{
		250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
		10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
		500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute,
	}
}

// Histogram counts durations. The zero value is empty.
type Histogram struct {
	// Count is the number of durations, and Sum their sum.
	Count uint64
	Sum   time.Duration
	// Buckets has for each of [LatencyBounds] the number of durations up to that bound and above
	// the previous one.
	Buckets [latencyBuckets]uint64
	// Exemplar is the newest duration of an event with a sampled trace.
	Exemplar Exemplar
}

// Exemplar is one duration of a [Histogram], with its trace.
type Exemplar struct {
	// TraceID is the id of the trace, 32 hex digits; empty for no exemplar.
	TraceID string
	// Duration is the counted duration.
	Duration time.Duration
	// At is when the duration ended.
	At time.Time
}

// Trace makes a duration that was counted the exemplar, unless trace is empty.
func (h *Histogram) Trace(d time.Duration, trace string, at time.Time) {
	if trace != "" {
		h.Exemplar = Exemplar{TraceID: trace, Duration: max(0, d), At: at}
	}
}

// Observe counts a duration. A negative one, because two clocks differ, counts as 0.
func (h *Histogram) Observe(d time.Duration) {
	d = max(0, d)
	h.Count++
	h.Sum += d

	bounds := LatencyBounds()
	low := 0
	high := latencyBuckets
	for low < high {
		if middle := (low + high) / 2; d <= bounds[middle] {
			high = middle
		} else {
			low = middle + 1
		}
	}

	if low < latencyBuckets {
		h.Buckets[low]++
	}
}

// Add adds the counts of o, and keeps the newer exemplar.
func (h *Histogram) Add(o *Histogram) {
	if o.Exemplar.At.After(h.Exemplar.At) {
		h.Exemplar = o.Exemplar
	}
	h.Count += o.Count
	h.Sum += o.Sum
	for i, n := range o.Buckets {
		h.Buckets[i] += n
	}
}
