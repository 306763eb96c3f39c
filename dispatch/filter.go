package dispatch

import (
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/safecall"
)

// Engines call filters before they hand anything to a lane: an event that does not pass takes no capacity, waits for
// no worker, and blocks nothing of its aggregate.

// ask calls a filter and turns its panic into an error.
func ask(f delivery.Filter, c *delivery.Candidate) (passes bool, err error) {
	defer safecall.Recover("it", &err)
	return f(c)
}

// both returns a filter that passes what a and b pass; a nil filter passes all.
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
