package ops

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/limit"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/routing"
)

// eventPosition is the position of a destination of a stream. The position without a
// name belongs to the unrouted scanner.
type eventPosition struct {
	destination   string
	shard, shards int
	idset.Watermark
	failure string // why the destination is down, where that is stored with its position
}

// routeRange is a row of outbox_routes, also a past one.
type routeRange struct {
	routing.Range

	skipped bool // a person has moved the position past these ids
}

// tables has the rows of the small tables in one snapshot.
type tables struct {
	stream    bool
	positions []eventPosition // by destination and shard
	former    []eventPosition // of shards before their number changed
	ranges    []routeRange
}

// row is a row of outbox_deliveries.
type row struct {
	Destination

	next time.Time
	at   time.Time
}

// act is the last entry of the audit about the delivery to a destination.
type act struct {
	destination string
	action      string // replay, discard or delivered
	actor       string
	at          time.Time
}

// raw has the rows of the other tables about an event, in the same snapshot.
type raw struct {
	Event

	mark string // outbox_events.state
	hash int64  // by which it belongs to a shard; not known of an event that is gone
	rows []row
	acts []act
}

// derive returns the event with the states that follow from all tables.
func (t *tables) derive(r *raw) Event {
	e := r.Event
	e.known = !e.Gone || len(r.rows)+len(r.acts) > 0
	for i := range r.rows {
		e.Destinations = append(e.Destinations, r.rows[i].delivery())
	}

	for _, a := range r.acts {
		if e.about(a.destination) || t.stream && t.behind(a.destination, r) {
			continue
		}

		switch at := a.at; a.action {
		case "discard":
			e.Destinations = append(e.Destinations, Destination{Name: a.destination, State: Discarded, Since: &at, Actor: a.actor})
		case "delivered":
			e.Destinations = append(e.Destinations, Destination{Name: a.destination, State: Delivered, Since: &at})
		default: // a replay, whose row is gone without an acknowledgement
			e.Destinations = append(e.Destinations, Destination{Name: a.destination, State: Unknown, Since: &at})
		}
	}

	if !e.Gone {
		t.rest(r, &e)
	}

	slices.SortFunc(e.Destinations, func(a, b Destination) int { return cmp.Compare(a.Name, b.Name) })

	if e.Destinations == nil {
		e.Destinations = []Destination{} // for JSON
	}

	e.State = e.sum()
	return e
}

// rest adds the destinations that have no row.
func (t *tables) rest(r *raw, e *Event) {
	// An event of a stream has a mark from the time when the table was a queue.
	undecided := e.about("")
	switch {
	case r.mark == "done", r.mark == "deferred" && len(r.rows) > 0 && !undecided:
		e.OthersSettled = true
	case r.mark == "deferred" && !undecided && !t.stream:
		e.Destinations = append(e.Destinations, Destination{State: Unknown})
		return
	}

	switch {
	case t.stream:
		t.positioned(r, e)
	case r.mark == "fresh" && len(r.rows) == 0:
		e.Destinations = append(e.Destinations, Destination{State: Fresh, NextTry: e.AvailableAt})
	}
}

// positioned adds the states that follow from positions and routes, for an
// event of a stream.
func (t *tables) positioned(r *raw, e *Event) {
	wanted := false // by a destination that reads it, or may
	for i := range t.positions {
		name := t.positions[i].destination
		if name == "" || i > 0 && t.positions[i-1].destination == name {
			continue
		}

		if e.about(name) {
			wanted = true
			continue
		}

		state, drops := t.stateAt(name, r)
		wanted = wanted || state != NotRouted
		if state == Passed && e.OthersSettled {
			continue // it was marked before the destination had a position
		}

		d := Destination{Name: name, State: state, Drops: drops}
		if state == Open || state == Unread {
			d.Error = t.failureOf(name, r)
		}
		if d.Error != "" {
			d.Class = delivery.ClassDestination.String()
		}

		e.Destinations = append(e.Destinations, d)
	}

	if e.about("") || e.OthersSettled {
		return
	}

	switch {
	case len(e.Destinations) == 0:
		e.Destinations = append(e.Destinations, Destination{State: Unread}) // no relay has begun to read
	case !wanted && t.behind("", r):
		e.Destinations = append(e.Destinations, Destination{State: Unrouted}) // the unrouted scanner has not reached it
	}
}

// failureOf returns why the destination of an event is down, "" if it is not.
func (t *tables) failureOf(name string, e *raw) string {
	for i := range t.positions {
		if p := &t.positions[i]; p.destination == name && p.gets(e) && p.failure != "" {
			return p.failure
		}
	}
	return ""
}

// stateAt is the state of a delivery without a row, and by which settings the destination may have passed it.
func (t *tables) stateAt(name string, e *raw) (state State, drops []string) {
	known := false
	reads := false
	skipped := false
	for i := range t.ranges {
		s := &t.ranges[i]
		switch {
		case s.Destination != name || !s.Contains(e.ID):
		case s.skipped:
			skipped = true
		default:
			known = true
			if s.Gets(e.Type) {
				reads = true
				drops = append(drops, s.Drops...)
			}
		}
	}

	switch {
	case known && !reads:
		return NotRouted, nil
	case t.under(name, e):
		return Open, nil
	case t.behind(name, e):
		return Unread, nil
	case skipped:
		return Skipped, nil
	case reads && drops == nil:
		return Delivered, nil
	}

	slices.Sort(drops)
	return Passed, slices.Compact(drops)
}

// behind reports whether a destination has not passed an event.
func (t *tables) behind(name string, e *raw) bool {
	if t.done(name, e) {
		return false
	}

	return slices.ContainsFunc(t.positions, func(p eventPosition) bool {
		return p.destination == name && p.gets(e) && !p.Has(e.ID)
	})
}

// under reports whether a destination has read the event and not acknowledged it.
func (t *tables) under(name string, e *raw) bool {
	if t.done(name, e) {
		return false
	}

	return slices.ContainsFunc(t.positions, func(p eventPosition) bool {
		return p.destination == name && p.gets(e) && p.Open.Contains(e.ID)
	})
}

// done reports whether the shard of an event has passed it before the number of shards changed.
func (t *tables) done(name string, e *raw) bool {
	if e.Gone {
		return false
	}

	return slices.ContainsFunc(t.former, func(p eventPosition) bool {
		return p.destination == name && p.gets(e) && p.Has(e.ID)
	})
}

// gets reports whether the event belongs to the shard. For a deleted event, whose shard is unknown, it reports true.
func (p *eventPosition) gets(e *raw) bool {
	return e.Gone || pgschema.ShardOf(e.hash, p.shards) == p.shard
}

// lowest is an id that all positions of a stream have passed, with all below it.
func (t *tables) lowest() int64 {
	lowest := int64(math.MaxInt64)
	for i := range t.positions {
		lowest = min(lowest, t.positions[i].Lowest())
	}

	if len(t.positions) == 0 {
		return math.MinInt64 // nobody has begun to read
	}

	return lowest
}

// delivery returns the state that the row holds.
func (r *row) delivery() Destination {
	d := r.Destination
	d.Since = &r.at
	if d.Error == limit.Waits {
		d.Class = "" // nobody's fault
	}

	switch d.State {
	case "retry":
		d.State = Waiting
		d.NextTry = &r.next
		if d.Attempts == 0 && d.Error == "" {
			d.Since = nil // it has not failed
		}
	case Dead, Running, Parked, Unrouted:
	default:
		d.State = Unknown
	}

	return d
}
