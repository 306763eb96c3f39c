package stream

import (
	"fmt"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/deliveries"
)

// totalName is the name of the one queue of a destination in total order, and of an event without an aggregate in that
// queue. No aggregate has this name: names of aggregates contain a slash.
const totalName = "*"

// order decides which events of a shard are delivered one after the other: the events of one queue. Only the goroutine
// of the shard uses it.
type order struct {
	keys     dispatch.Keys
	kept     bool         // the destination has queues
	total    bool         // the destination has one queue
	totalKey dispatch.Key // the key of that queue
	shard    int          // the shard number of its rows, from 1; 0 if the destination has one shard
	scratch  []byte       // reused buffer
}

func newOrder(lane dispatch.StreamLane, keys dispatch.Keys) order {
	o := order{keys: keys, kept: !lane.Destination().Unordered, total: lane.Destination().Total}
	if o.total {
		o.totalKey = keys.Named(totalName)
	}
	if d := lane.Destination(); d.Shards > 1 {
		o.shard = 1 + d.Shard
	}

	return o
}

// mine returns a condition that restricts due rows to this shard, to append to the condition for the destination. A
// destination with one shard needs none.
func (o *order) mine() string {
	if o.shard == 0 {
		return ""
	}
	return fmt.Sprintf(" AND shard > 0 AND shard = %d", o.shard)
}

// of returns the key of an event's queue, zero without a queue.
func (o *order) of(e *delivery.Event) (key dispatch.Key) {
	switch {
	case !o.kept:
		return dispatch.Key{}
	case o.total:
		return o.totalKey
	}

	key, o.scratch = o.keys.Of(o.scratch, e)
	return key
}

// name returns the name of an event's aggregate, as its row has it. In a total order an event without an aggregate has
// a name, too: every row with a name is in the one queue of that order.
func (o *order) name(e *delivery.Event) string {
	name := dispatch.OrderingKey(e)
	if o.total && name == "" {
		return totalName
	}
	return name
}

// queue returns the name of the queue of a row with this name.
func (o *order) queue(name string) string {
	if o.total {
		return totalName
	}
	return name
}

// keyOf returns the key of the queue of a row with this name. In a total order a row without a name joins the queue
// when it is due.
func (o *order) keyOf(name string) dispatch.Key {
	switch {
	case o.total:
		return o.totalKey
	case !o.kept || o.unnamed(name):
		return dispatch.Key{}
	}
	return o.keys.Named(name)
}

// unnamed reports whether a row with this name is in no queue. totalName counts as a name only in a total order.
func (o *order) unnamed(name string) bool { return name == "" || name == totalName && !o.total }

// nameOf returns the name that the row has, or gets when it joins its queue.
func (o *order) nameOf(r *deliveries.Row) string {
	if o.total && r.Key == "" {
		return o.name(&r.Event)
	}
	return r.Key
}

// leads reports whether a due row goes before all stored rows of its queue, and waits whether another row of the queue
// comes first.
func (o *order) leads(r *deliveries.Row) (leads, waits bool) {
	leads = o.total || o.kept && !o.unnamed(r.Key)
	return leads, leads && !r.First && !r.Filtered
}

// passesDead reports whether a row is delivered although a dead letter that blocks is in front of it: a person has
// replayed the row, and not the letter. In a total order no row is.
func (o *order) passesDead(r *deliveries.Row) bool { return !o.total && r.Event.Replay > 0 }

// sqlPassesDead returns passesDead as a condition on a row.
func (o *order) sqlPassesDead(row string) string {
	if o.total {
		return "false"
	}
	return row + ".replays > 0"
}

// first returns the condition that a due row d is the first of its queue. $5 tells whether dead letters block.
func (o *order) first() string {
	live, dead := o.rows("event_id", "d.destination", "d.ordering_key", "1")
	front := `least(` + live + `, CASE WHEN $5 AND NOT ` + o.sqlPassesDead("d") + ` THEN ` + dead + ` END)`
	if o.total {
		return `coalesce(d.event_id <= ` + front + `, true)`
	}
	return `d.ordering_key IS NULL OR d.event_id = ` + front
}

// rows returns two SELECTs of the first stored rows in an aggregate's queue: one of live rows, one of dead letters. A
// total order has one queue, with all named rows of the destination. The conditions name ranges where one value is
// meant: with equality, the planner may take an index in id order, such as the primary key, and read rows of all
// destinations.
func (o *order) rows(columns, destination, name, limit string) (live, dead string) {
	if o.total {
		from := `(SELECT ` + columns + ` FROM outbox_deliveries WHERE destination BETWEEN ` + destination + ` AND ` + destination
		to := ` ORDER BY destination, event_id LIMIT ` + limit + `)`
		return from + ` AND ordering_key IS NOT NULL AND ` + liveRows + to, from + ` AND ordering_key IS NOT NULL AND ` + deadRows + to
	}

	from := `(SELECT ` + columns + ` FROM outbox_deliveries
		WHERE destination = ` + destination + ` AND ordering_key BETWEEN ` + name + ` AND ` + name + ` AND `
	to := ` ORDER BY ordering_key, event_id LIMIT ` + limit + `)`
	return from + liveRows + to, from + deadRows + to
}
