package health

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/laneconf"
)

func TestBackoffStaysWithinItsBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := delivery.Backoff{
			Initial:    time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(24*time.Hour)).Draw(t, "initial")),
			Multiplier: rapid.Float64Range(1, 100).Draw(t, "multiplier"),
		}
		b.Max = time.Duration(rapid.Int64Range(int64(b.Initial), math.MaxInt64).Draw(t, "max"))
		if err := laneconf.ValidateBackoff(b); err != nil {
			t.Fatal(err)
		}
		failures := rapid.IntRange(0, math.MaxInt-1).Draw(t, "failures")
		before, next := base(b, failures), base(b, failures+1)
		if before < b.Initial || before > b.Max || next < before {
			t.Fatalf("base after %d failures %v, then %v, of %+v", failures, before, next, b)
		}
		most := 2 * before
		if most < before { // beyond what a duration can say
			most = math.MaxInt64
		}
		if got := wait(&delivery.Lane{Backoff: b}, failures); got < 0 || got > most {
			t.Fatalf("waits %v after %d failures, base %v", got, failures, before)
		}
	})
}

// TestScheduleIsFollowed: each failure has its pause, give or take a tenth, and the last pause repeats.
func TestScheduleIsFollowed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pauses := rapid.SliceOfN(rapid.Int64Range(int64(time.Millisecond), math.MaxInt64), 1, 5).Draw(t, "pauses")
		l := delivery.Lane{Backoff: laneconf.Backoff(delivery.Backoff{})}
		for _, pause := range pauses {
			l.Retry = append(l.Retry, time.Duration(pause))
		}

		failures := rapid.IntRange(0, 10).Draw(t, "failures")
		want := min(l.Retry[min(max(failures, 1), len(pauses))-1], LongestWait)
		if got := wait(&l, failures); got < want-want/10-1 || got > want+want/10+1 {
			t.Fatalf("waits %v after %d failures, by %v", got, failures, l.Retry)
		}
	})
}
