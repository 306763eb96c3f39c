package backoff

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/laneconf"
)

// TestPauses: pauses grow to the longest one, and after a reset begin with the first.
func TestPauses(t *testing.T) {
	t.Parallel()
	p := NewPauses(time.Second, time.Minute, 2)
	for range 2 {
		if first := p.Next(); first < time.Second/2 || first > 3*time.Second/2 {
			t.Errorf("the first pause is %v", first)
		}
		for range 1000 {
			p.Next()
		}
		if last := p.Next(); last < time.Minute/2 || last > 3*time.Minute/2 {
			t.Errorf("the last pause is %v", last)
		}
		p.Reset()
	}
}

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
		wait, next := base(b, failures), base(b, failures+1)
		if wait < b.Initial || wait > b.Max || next < wait {
			t.Fatalf("base after %d failures %v, then %v, of %+v", failures, wait, next, b)
		}
		most := 2 * wait
		if most < wait { // beyond what a duration can say
			most = math.MaxInt64
		}
		if got := Wait(&delivery.Lane{Backoff: b}, failures); got < 0 || got > most {
			t.Fatalf("waits %v after %d failures, base %v", got, failures, wait)
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
		want := min(l.Retry[min(max(failures, 1), len(pauses))-1], Longest)
		if got := Wait(&l, failures); got < want-want/10-1 || got > want+want/10+1 {
			t.Fatalf("waits %v after %d failures, by %v", got, failures, l.Retry)
		}
	})
}
