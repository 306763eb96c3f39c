package dispatch

import (
	"errors"
	"log/slog"
	"testing"
)

// asking is an observer that looks at the figures when it is told something.
type asking struct {
	h    *health
	down []bool
}

func (a *asking) Observe(Incident) { a.down = append(a.down, a.h.down()) }

// TestObserverMayAsk: an observer that reads the relay's figures does not hang.
func TestObserverMayAsk(t *testing.T) {
	t.Parallel()
	a := &asking{}
	a.h = &health{log: slog.New(slog.DiscardHandler), observer: a}
	a.h.report(errors.New("gone"))
	a.h.report(nil)
	if len(a.down) != 2 || !a.down[0] || a.down[1] {
		t.Errorf("down() = %v, want true, then false", a.down)
	}
}
