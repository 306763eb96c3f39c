package backoff

import (
	"testing"
	"time"
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
