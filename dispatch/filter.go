package dispatch

import (
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/safecall"
)

// Engines call filters before they hand anything to a lane: an event that does not pass takes no capacity, waits for
// no worker, and blocks nothing of its aggregate.

// slow is how long a filter or the function of a rate key may take without a line in the log: meanwhile other events wait.
const slow = 100 * time.Millisecond

// logSlow logs a call of a filter or of the function of a rate key that took long.
func (l *lane) logSlow(of, route string, e *delivery.Event, began time.Time) {
	if took := time.Since(began); took > slow {
		l.log.Warn("slow evaluation", "of", of, "event_id", e.ID, "event_type", e.Type, "bytes", len(e.Payload), "route", route, "took", took)
	}
}

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
