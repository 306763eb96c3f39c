package stream

import (
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/position"
)

// common has the state that a shard shares with its parts: its destination and its ties to the engine. It does not
// change while the shard works, so it needs no lock, and callbacks of answers may use it.
type common struct {
	e        *Engine
	name     string
	reportAs string // the shard's name in reports
	lane     dispatch.StreamLane
	pos      position.Position
	limit    limit         // nil: no limit
	wake     chan struct{} // capacity 1: an answer, capacity of the lane, or a notification
}

// poke wakes the shard. It never blocks, and any goroutine may call it.
func (c *common) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// reportSingle is the name of the shard's refused rows in reports.
func (c *common) reportSingle() string { return c.reportAs + ", single events" }

// gets reports whether the destination gets events of a type by the current routes.
func (c *common) gets(eventType string) bool { return c.e.d.Wanted(c.name, eventType) }

// passes applies the filter, if there is one, to an event that is about to be delivered. refused is an error that
// already forbids the delivery; passes returns it, or the error of the filter.
func (c *common) passes(e *delivery.Event, refused error) (bool, error) {
	f := c.e.d.FilterOf(c.name, e.Type)
	if f == nil || refused != nil {
		return true, refused
	}

	passes, refused := f(&delivery.Candidate{Event: e})
	if !passes {
		c.e.d.Filtered(c.name)
	}
	return passes, refused
}
