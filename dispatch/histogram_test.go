package dispatch

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
			h.observe(d)
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

// TestMeasure: what is counted of an answer, and what is left out.
func TestMeasure(t *testing.T) {
	t.Parallel()
	written := time.Unix(1000, 0)
	began := written.Add(time.Second)
	event := Event{ID: 1, CreatedAt: written}
	replayed := event
	replayed.Replay = 1
	for name, c := range map[string]struct {
		delivery     Delivery
		out          outcome
		class        Class
		begun, acked time.Duration // 0: not counted
	}{
		"delivered":        {Delivery{Event: &event}, outcome{verdict: delivered}, 0, 1100 * time.Millisecond, 1300 * time.Millisecond},
		"failed":           {Delivery{Event: &event}, outcome{verdict: failed, class: ClassEvent}, ClassEvent, 1100 * time.Millisecond, 0},
		"another attempt":  {Delivery{Event: &event, Failures: 1}, outcome{verdict: delivered}, 0, 0, 1300 * time.Millisecond},
		"delayed":          {Delivery{Event: &event, Delayed: true}, outcome{verdict: delivered}, 0, 0, 0},
		"replayed":         {Delivery{Event: &replayed}, outcome{verdict: delivered}, 0, 0, 0},
		"destination down": {Delivery{Event: &event}, outcome{verdict: released, class: ClassDestination}, ClassDestination, 1100 * time.Millisecond, 0},
	} {
		l := &lane{}
		j := &job{parcel: &Parcel{events: []Delivery{c.delivery}}, event: c.delivery.Event}
		c.out.from, c.out.to = 100*time.Millisecond, 300*time.Millisecond
		l.measureLocked(j, began.UnixNano(), &c.out)
		var want lane
		want.classes[c.class] = 1
		if c.begun > 0 {
			want.begun.observe(c.begun)
		}
		if c.acked > 0 {
			want.acked.observe(c.acked)
		}
		if l.classes != want.classes || l.begun != want.begun || l.acked != want.acked {
			t.Errorf("%s: classes %v, begun %v, acked %v", name, l.classes, l.begun, l.acked)
		}
	}
}
