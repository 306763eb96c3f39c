package replay

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestPaceAllowsWhatThereIs: whatever the rate, no more goes than there is, and never less than nothing.
func TestPaceAllowsWhatThereIs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := pace{rate: math.Abs(rapid.Float64().Draw(t, "rate"))}
		now := time.Now()
		for range 5 {
			n := rapid.IntRange(0, 1000).Draw(t, "n")
			got := p.allow(now, n)
			if got < 0 || got > n {
				t.Fatalf("%d of %d may go at %g per second", got, n, p.rate)
			}
			p.sent(got)
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "pause")))
		}
	})
}
