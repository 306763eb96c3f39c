package stream

import (
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/position"
)

// common has what a unit shares with its parts: its destination, and its ties to the engine. Nothing
// of it changes while the unit works, so there is no lock, and answers may use it, too.
type common struct {
	e     *Engine
	name  string
	part  string // its name in reports
	lane  dispatch.StreamLane
	pos   position.Position
	limit limit         // nil for none
	wake  chan struct{} // capacity 1: an answer, room, a notification
}

// poke wakes the unit. It never blocks, and any goroutine may call it.
func (c *common) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// gets reports whether the destination gets events of a type by the routes of today.
func (c *common) gets(eventType string) bool { return c.e.d.Wanted(c.name, eventType) }

// passes asks the filter, if there is one, about an event that is about to be delivered. refused is why it must not be, if that is
// known before; so is the error.
func (c *common) passes(e *delivery.Event, refused error) (bool, error) {
	if f := c.e.d.FilterOf(c.name, e.Type); f != nil && refused == nil {
		return f(&delivery.Candidate{Event: e})
	}
	return true, refused
}
