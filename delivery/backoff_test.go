package delivery

import (
	"math"
	"testing"
	"time"
)

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
