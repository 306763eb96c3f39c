package stream

import (
	"fmt"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/deliveries"
)

// totalName is the name of the one queue of a destination in total order, and in it of events without an aggregate. No
// aggregate has it: their names have a slash.
const totalName = "*"

// order says which events of a unit are delivered one after the other: those in one queue. Only the goroutine of the
// unit uses it.
type order struct {
	keys    dispatch.Keys
	kept    bool         // there are queues
	total   bool         // there is one
	line    dispatch.Key // of that one
	shard   int          // of its rows, from 1 on; 0 where the destination has one shard
	scratch []byte       // to reuse
}

func newOrder(lane dispatch.StreamLane, keys dispatch.Keys) order {
	o := order{keys: keys, kept: !lane.Destination().Unordered, total: lane.Destination().Total}
	if o.total {
		o.line = keys.Named(totalName)
	}
	if d := lane.Destination(); d.Shards > 1 {
		o.shard = 1 + d.Part
	}
	return o
}

// mine returns the condition, to follow the one for the destination, that a row that is due is of this shard. A destination with one
// shard needs none.
func (o *order) mine() string {
	if o.shard == 0 {
		return ""
	}
	return fmt.Sprintf(" AND shard > 0 AND shard = %d", o.shard)
}

// of returns the key of an event's queue, zero if it is in none.
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

// name returns the name of an event's aggregate, as its row has it. In a total order an event without an aggregate
// has a name, too: every row with a name is in the one queue of that order.
func (o *order) name(e *delivery.Event) string {
	name := dispatch.OrderingKey(e)
	if o.total && name == "" {
		return totalName
	}
	return name
}

// queue returns the name of the queue that a row with this name is in.
func (o *order) queue(name string) string {
	if o.total {
		return totalName
	}
	return name
}

// keyOf returns the key of the queue that a row with this name is in. In a total order a row without a name is in the queue
// from the time on at which it is due.
func (o *order) keyOf(name string) dispatch.Key {
	switch {
	case o.total:
		return o.line
	case !o.kept || o.unnamed(name):
		return dispatch.Key{}
	}
	return o.keys.Named(name)
}

// unnamed reports whether a row with this name is in no queue. The name of an event without an aggregate counts in a total
// order only.
func (o *order) unnamed(name string) bool { return name == "" || name == totalName && !o.total }

// nameOf returns the name that a row of the queue has, or gets.
func (o *order) nameOf(r *deliveries.Row) string {
	if o.total && r.Key == "" {
		return o.name(&r.Event)
	}
	return r.Key
}

// leads reports whether a row that is due goes before all stored rows of its queue, and waits whether another row
// of the queue comes first. A dead letter that a person replays waits in a total order only.
func (o *order) leads(r *deliveries.Row) (leads, waits bool) {
	leads = o.total || o.kept && !o.unnamed(r.Key)
	return leads, leads && !r.First && !r.Filtered && (o.total || r.Event.Replay == 0)
}

// first returns the condition that a due row d is the first of its queue: $5 says whether dead letters block.
func (o *order) first() string {
	live, dead := o.rows("event_id", "d.destination", "d.ordering_key", "1")
	front := `least(` + live + `, CASE WHEN $5 THEN ` + dead + ` END)`
	if o.total {
		return `coalesce(d.event_id <= ` + front + `, true)`
	}
	return `d.ordering_key IS NULL OR d.event_id = ` + front
}

// rows returns two SELECTs, of the first stored rows in the queue of an aggregate: the live ones and the dead letters. A
// total order has one queue, with all rows of the destination that have a name. The conditions name ranges where one value is
// meant: otherwise the planner may take an index that has the order of ids for more rows than these, as the primary key has for
// all destinations.
func (o *order) rows(columns, destination, name, limit string) (live, dead string) {
	if o.total {
		from := `(SELECT ` + columns + ` FROM outbox_deliveries WHERE destination BETWEEN ` + destination + ` AND ` + destination
		to := ` ORDER BY destination, event_id LIMIT ` + limit + `)`
		return from + ` AND ordering_key IS NOT NULL AND ` + whichLive + to, from + ` AND ordering_key IS NOT NULL AND ` + whichDead + to
	}
	from := `(SELECT ` + columns + ` FROM outbox_deliveries WHERE destination = ` + destination + ` AND ordering_key BETWEEN ` + name + ` AND ` + name + ` AND `
	to := ` ORDER BY ordering_key, event_id LIMIT ` + limit + `)`
	return from + whichLive + to, from + whichDead + to
}
