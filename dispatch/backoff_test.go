package dispatch

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBackoffStaysWithinItsBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := Backoff{
			Initial:    time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(24*time.Hour)).Draw(t, "initial")),
			Multiplier: rapid.Float64Range(1, math.MaxFloat64).Draw(t, "multiplier"),
		}
		b.Max = time.Duration(rapid.Int64Range(int64(b.Initial), math.MaxInt64).Draw(t, "max"))
		if err := b.Validate(); err != nil {
			t.Fatal(err)
		}
		failures := rapid.IntRange(0, math.MaxInt-1).Draw(t, "failures")
		base, next := b.base(failures), b.base(failures+1)
		if base < b.Initial || base > b.Max || next < base {
			t.Fatalf("base after %d failures %v, then %v, of %+v", failures, base, next, b)
		}
		most := 2 * base
		if most < base { // beyond what a duration can say
			most = math.MaxInt64
		}
		if wait := b.wait(failures); wait < 0 || wait > most {
			t.Fatalf("waits %v after %d failures, base %v", wait, failures, base)
		}
	})
}

func TestBackoffRefusesWhatIsNoBackoff(t *testing.T) {
	t.Parallel()
	good := DefaultBackoff()
	for name, change := range map[string]func(*Backoff){
		"initial":  func(b *Backoff) { b.Initial = time.Microsecond },
		"max":      func(b *Backoff) { b.Max = b.Initial - 1 },
		"below 1":  func(b *Backoff) { b.Multiplier = 0.99 },
		"NaN":      func(b *Backoff) { b.Multiplier = math.NaN() },
		"infinite": func(b *Backoff) { b.Multiplier = math.Inf(1) },
	} {
		b := good
		change(&b)
		if b.Validate() == nil {
			t.Errorf("%s: accepted %+v", name, b)
		}
	}
}

func TestBreaker(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var b breaker
	if b.open() || !b.mayProbe(now) || b.reset() {
		t.Fatal("the zero breaker is not closed")
	}
	pause, opened, longer := b.trip(now)
	if !opened || !longer || pause < firstPause/2 || pause > 2*firstPause {
		t.Fatalf("first fault: %v %t %t", pause, opened, longer)
	}
	if b.mayProbe(now.Add(pause-1)) || !b.mayProbe(now.Add(pause)) {
		t.Error("the pause is not what was said")
	}
	rest, opened, longer := b.trip(now.Add(pause / 2))
	if opened || longer || rest != pause-pause/2 {
		t.Errorf("a fault within the pause: %v %t %t", rest, opened, longer)
	}
	for range 50 {
		now = now.Add(pause)
		if pause, opened, longer = b.trip(now); opened || !longer || pause > longestPause*3/2 {
			t.Fatalf("a probe failed: %v %t %t", pause, opened, longer)
		}
	}
	if pause < longestPause/2 {
		t.Errorf("after 50 faults the pause is %v", pause)
	}
	if !b.reset() || b.open() {
		t.Error("an answer does not close it")
	}
}
