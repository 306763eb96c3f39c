package dispatch

import (
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/guard"
)

// Engines ask filters before they hand anything to a lane: an event that is not for a destination
// takes no room there, waits for no worker, and holds up nothing of its aggregate.

// ask calls a filter, which may panic.
func ask(f delivery.Filter, c *delivery.Candidate) (passes bool, err error) {
	defer guard.Recover("it", &err)
	return f(c)
}

// both returns a filter for what passes both, either of which may be nil.
func both(a, b delivery.Filter) delivery.Filter {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(c *delivery.Candidate) (bool, error) {
		if passes, err := a(c); err != nil || !passes {
			return false, err
		}
		return b(c)
	}
}
