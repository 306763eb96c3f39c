package dispatch

import (
	"fmt"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/guard"
)

// Engines ask filters before they hand anything to a lane: an event that is not for a destination
// takes no room there, waits for no worker, and holds up nothing of its aggregate.

// FilterOf returns the filter for events of a type on their way to a destination, nil for none. It costs nothing where
// nothing is filtered. The filter counts the events that do not pass. If it cannot tell, its error is the reason why
// the event must not be delivered: see Delivery.Refused.
func (d *Dispatcher) FilterOf(destination, eventType string) delivery.Filter {
	if !d.router.filtered {
		return nil
	}
	w, _ := d.router.wayOf(eventType)
	for i, to := range w.lanes {
		if to.dest.Name == destination {
			return w.filters[i]
		}
	}
	l := d.first(destination)
	return l.counts(l.dest.Filter) // a stored delivery whose route has ended
}

// counts returns a filter that counts what does not pass, and calls another one, which may panic; nil for none.
func (l *lane) counts(f delivery.Filter) delivery.Filter {
	if f == nil {
		return nil
	}
	return func(c *delivery.Candidate) (bool, error) {
		passes, err := ask(f, c)
		if err != nil {
			return true, fmt.Errorf("the filter of %q cannot decide about the event: %s", l.dest.Name, guard.Text(err))
		}
		if !passes {
			l.figures.passings.filtered.Add(1)
		}
		return passes, nil
	}
}

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
