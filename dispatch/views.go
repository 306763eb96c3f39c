package dispatch

import (
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// Engines find events to deliver and hand them to lanes: package queue claims events, package stream reads them in order.
// A lane is the way to one destination. Each engine has a view of it.

// QueueLane is a lane of an engine that keeps no order: deliveries begin as workers come to them.
type QueueLane interface {
	// Destination returns what never changes about the destination.
	Destination() *Destination
	// Serve gives the lane to the engine. onCapacity is called when Reserve or Capacity had less than was requested and
	// there is more; it must not block.
	Serve(onCapacity func())
	// Capacity returns for how many deliveries there is capacity, or 0 if that is too little to be worth a claim. For stored
	// deliveries it is also 0 while the destination may be down and a new delivery has to find out.
	Capacity(stored bool) int
	// HasCapacity reports whether there is capacity for at least one delivery.
	HasCapacity() bool
	// Reserve reserves capacity, and returns for how many deliveries.
	Reserve(r Request) int
	// Return returns unused reserved capacity.
	Return(n int)
	// Refused counts a delivery for which there was no capacity.
	Refused()
	// Admit returns how long each delivery waits for the rate limit, 0 for those that may begin; nil if all may. Where
	// each key has a rate of its own others go past one that waits. Admit is called in the order of the hand-over, and
	// may ask the database. Only a destination with a rate limit needs it.
	Admit(all []Delivery) (waits []time.Duration)
	// Deliver hands over a parcel for which capacity was reserved. unblock is nil here.
	Deliver(p *Parcel, unblock []Key)
	// TakeBack returns the deliveries of a parcel that no worker has begun.
	TakeBack(p *Parcel)
	// Slow reports whether it is a waste to wait for an answer with a transaction open.
	Slow() bool
	// Observe records that a delivery takes at least this long.
	Observe(atLeast time.Duration)
}

// StreamLane is a lane of an engine that hands events over in order.
type StreamLane interface {
	// Destination returns what never changes about the destination.
	Destination() *Destination
	// Own gives the lane to the engine, with nothing in flight and no aggregate blocked. onCapacity is called when
	// Reserve had less than was requested and there is more, or when the lane may go on after something was returned; it
	// must not block.
	Own(onCapacity func())
	// Withdraw returns all deliveries that no worker has begun. The lane takes nothing more until it is owned again.
	Withdraw()
	// Disown ends what Own began, once nothing of the lane is in flight: another relay calls the destination from now on.
	// The lane forgets the health of the destination. Own begins without it.
	Disown()
	// Reserve reserves capacity, and returns for how many deliveries.
	Reserve(r Request) int
	// Return returns unused reserved capacity.
	Return(n int)
	// Waits reports whether stored, or new, deliveries must wait for a moment: the destination may be down, and it is the
	// turn of the others to find out. An event over which the destination failed is stored; were stored events always
	// first, new ones would never be tried. New ones wait once their aggregates held back too many. onCapacity is
	// called when they may go.
	Waits(stored bool) bool
	// Admit is that of QueueLane.
	Admit(all []Delivery) (waits []time.Duration)
	// Deliver hands over a parcel for which capacity was reserved. The aggregates in unblock are no longer blocked: all
	// their stored deliveries have been handed over, the last of them with this parcel.
	Deliver(p *Parcel, unblock []Key)
	// SetRows records whether deliveries of the aggregate are stored.
	SetRows(key Key, rows Rows)
	// Order returns the state of the order, and that of one aggregate; the zero key is none.
	Order(key Key) Order
	// GoOn lets the lane take deliveries again, if it has returned nothing since Order counted n. The engine must have taken
	// all answers since then from the parcels, and hands the returned deliveries over first, in the order of ids.
	GoOn(n uint64) bool
}

// Destination is what never changes about a destination.
type Destination struct {
	Name string
	LaneConfig
	// Position is the handler if it keeps the position of its destination; nil if not.
	Position delivery.PositionKeeper

	clock *clock // the database's
}

// Blocks reports whether a dead letter holds back the later events of its aggregate.
func (d *Destination) Blocks() bool { return d.BlockOnDead && !d.Unordered }

// Limited reports whether there is a rate limit. Then Admit comes before Deliver.
func (d *Destination) Limited() bool { return !d.Rate.IsZero() }

// Expires returns when an event is too old to be delivered: see [Delivery.Expires]. It is zero where events do not expire. The
// event was written, or became available, at a time of the database. available is instead by this relay's clock, zero for an
// event that was available at once. The later one counts: a writer may make an event available before it exists.
func (d *Destination) Expires(written, available time.Time) time.Time {
	if d.ExpiresAfter == 0 {
		return time.Time{}
	}
	at := d.clock.here(written.Add(d.ExpiresAfter))
	if available.IsZero() {
		return at
	}
	if later := available.Add(d.ExpiresAfter); later.After(at) {
		return later
	}
	return at
}

// Request asks a lane for capacity.
type Request struct {
	// N is the number of deliveries.
	N int
	// Once says that the engine reads once for what is reserved: nothing is reserved where that is not worth a read.
	Once bool
	// Replay says that the deliveries may take only what live ones leave. They fill half of the lane at most, and
	// of a fast one only as much as it works off in 2 ms, so that a live delivery finds capacity, and hardly waits. Nothing is
	// reserved for less than half of that: the engine asks again after the answers.
	Replay bool
	// Held is how many deliveries of a replay the lane has.
	Held int
}

// Rows says whether deliveries of an aggregate are stored.
type Rows uint8

const (
	// NoRows says that none is stored: the aggregate is not blocked.
	NoRows Rows = iota
	// SomeRows says that some are: later deliveries are parked.
	SomeRows
	// NewRow says that one has just been stored to wait for its turn: later deliveries are parked, as behind one that
	// has failed.
	NewRow
)

// Order is the state of the order of a lane.
type Order struct {
	// Blocked says that the aggregate is blocked.
	Blocked bool
	// Busy says that a delivery of the aggregate is in flight: when the last one is delivered while the aggregate is
	// blocked, its answer has Behind set.
	Busy bool
	// Aggregates is the number of blocked aggregates.
	Aggregates int
	// Failures counts how often a failure has blocked an aggregate, from 1. The answers of those that it counts can be taken
	// from their parcels. It is 0 for a lane without order.
	Failures uint64
	// Returned counts how often a delivery was returned.
	Returned uint64
	// Stopped says that the lane takes nothing for that reason until GoOn is called.
	Stopped bool
}
