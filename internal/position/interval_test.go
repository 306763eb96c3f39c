package position

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestIntervals: the pause after a write is a multiple of its duration, within its bounds, and no pause and write together
// are longer than what the checks of a relay allow for.
func TestIntervals(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		took := time.Duration(rapid.Int64Range(0, int64(RoundTrip)).Draw(t, "took"))
		for name, c := range map[string]struct {
			pause, least, most time.Duration
			share              int
		}{
			"save":  {SaveAfter(took), saveEvery, saveAtMost, saveShare},
			"whole": {wholeAfter(took), wholeAtLeast, wholeAtMost, wholeShare},
		} {
			isShare := c.pause == time.Duration(c.share)*took
			isLeast := c.pause == c.least && took*time.Duration(c.share) <= c.least
			isMost := c.pause == c.most && took*time.Duration(c.share) >= c.most
			if !isShare && !isLeast && !isMost {
				t.Errorf("%s: %v after a write of %v", name, c.pause, took)
			}
			if c.pause+took > LongestUnwritten {
				t.Errorf("%s: %v unwritten, more than %v", name, c.pause+took, LongestUnwritten)
			}
		}
	})
}
