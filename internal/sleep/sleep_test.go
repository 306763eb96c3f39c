package sleep_test

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/internal/sleep"
)

// TestFor: a wait lasts as long as it has to, or until its context ends.
func TestFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		wait, ends, want time.Duration
		whole            bool
	}{
		{time.Minute, time.Hour, time.Minute, true}, {time.Hour, time.Minute, time.Minute, false}, {0, time.Hour, 0, true}, {-1, time.Hour, 0, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), c.ends)
			defer cancel()
			began := time.Now()
			if whole := sleep.For(ctx, c.wait); whole != c.whole || time.Since(began) != c.want {
				t.Errorf("%v of %v: waited %v: %v", c.wait, c.ends, time.Since(began), whole)
			}
		})
	}
}

// TestSpread: both sides of the duration occur, and nothing beyond the share.
func TestSpread(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, math.MaxInt64/2).Draw(t, "duration"))
		share := rapid.Float64Range(0, 1).Draw(t, "share")
		most := min(time.Duration(share*float64(d)), d)
		var below, above bool
		for range 64 {
			got := sleep.Spread(d, share)
			if got < d-most || got > d+most {
				t.Fatalf("%v of %v is %v", share, d, got)
			}
			below = below || got < d
			above = above || got > d
		}
		if isWide := most > time.Second; isWide && (!below || !above) {
			t.Fatalf("%v of %v is always on one side", share, d)
		}
	})
}
