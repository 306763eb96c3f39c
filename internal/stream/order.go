package stream

import (
	"slices"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
)

// totalName is the name of the one line of a destination that gets all events one after the other.
// No aggregate has it: their names have a slash.
const totalName = "*"

// order says which events of a unit are in one line. Only the goroutine of the unit uses it.
type order struct {
	keys    dispatch.Keys
	kept    bool         // events are in lines at all
	total   bool         // all events are in one line
	line    dispatch.Key // of that line
	scratch []byte       // to reuse
}

func newOrder(lane dispatch.StreamLane, keys dispatch.Keys) order {
	o := order{keys: keys, kept: !lane.Destination().Unordered, total: lane.Destination().Total}
	if o.total {
		o.line = keys.Named(totalName)
	}
	return o
}

// of returns the key of an event's line, zero if it is in none.
func (o *order) of(e *delivery.Event) (key dispatch.Key) {
	switch {
	case !o.kept:
		return dispatch.Key{}
	case o.total:
		return o.line
	}
	key, o.scratch = o.keys.Of(o.scratch, e)
	return key
}

// name returns the name of an event's line, as it is stored.
func (o *order) name(e *delivery.Event) string {
	if o.total {
		return totalName
	}
	return dispatch.OrderingKey(e)
}

// leads reports whether a row that is due goes before all that its line has stored, and later,
// whether it must wait for its line: another row of it comes first. A row may be stored by another
// order, as one of the router is; it leads nothing in a total order.
func (o *order) leads(r *stored) (leads, waits bool) {
	switch {
	case !o.kept || r.key == "":
		return false, false
	case o.total:
		return r.key == totalName, r.key == totalName && !r.first && !r.over
	}
	return true, !r.first && r.event.Replay == 0 && !r.over
}

// feedHeld hands over, of what the lane has given back, the stored events of a line that is held.
// Now and then it looks at the line: a dead letter that was discarded leaves nothing that is due.
func (u *unit) feedHeld() bool {
	if i := slices.IndexFunc(u.gate.flight.again, func(d dispatch.Delivery) bool { return d.Leads }); i >= 0 {
		d := u.gate.flight.again[i]
		if u.gate.grant(1) == 0 {
			return false
		}
		u.gate.flight.again = slices.Delete(u.gate.flight.again, i, i+1)
		p := u.gate.parcel()
		u.gate.deliver(p, append(p.Room(1), d), nil, 1)
		return true
	}
	if time.Now().Before(u.shelf.lineAt) || u.lane.Order(u.order.line).Busy {
		return false
	}
	u.collect() // nothing is in flight, so that these are the last answers
	if !u.shelf.pending.empty() {
		return false // the line is not yet stored
	}
	u.shelf.lineAt = time.Now().Add(u.e.limits.PollInterval)
	u.shelf.continueLine(u.order.line, totalName)
	return true
}

// misplaced are the conditions for rows that another order has stored, each for one range of an
// index.
func (o *order) misplaced() []string {
	if !o.total {
		return []string{`ordering_key = '*' AND ` + whichLive, `ordering_key = '*' AND ` + whichDead}
	}
	// A row without a key that is not due was tried, or is a delayed event, which is in no line until then.
	return []string{
		`ordering_key < '*' AND ` + whichLive, `ordering_key > '*' AND ` + whichLive, `ordering_key < '*' AND ` + whichDead, `ordering_key > '*' AND ` + whichDead,
		`ordering_key IS NULL AND state = 'retry' AND (attempts > 0 OR error_class IS NOT NULL OR available_at <= now())`,
	}
}
