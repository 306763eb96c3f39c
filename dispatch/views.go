package dispatch

import (
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// Engines find events to deliver and hand them to lanes: package queue claims events, package stream reads them in order.
// A lane is the way to one destination. Each engine has a view of it.

// QueueLane is the view of an engine that keeps no order: workers begin deliveries as they come.
type QueueLane interface {
	// Destination returns what never changes about the destination.
	Destination() *Destination
	// Serve gives the lane to the engine. After Reserve or Capacity refused something, the lane calls onCapacity once more
	// deliveries may begin. onCapacity must not block.
	Serve(onCapacity func())
	// Capacity returns how many deliveries may begin, and 0 if so few are not worth a claim. Stored deliveries also get 0
	// while the destination may be down and a new delivery has to find out.
	Capacity(stored bool) int
	// HasCapacity reports whether at least one delivery may begin.
	HasCapacity() bool
	// Reserve reserves capacity and returns for how many deliveries.
	Reserve(r Request) int
	// Return returns unused reserved capacity.
	Return(n int)
	// Refused counts a delivery that found no capacity.
	Refused()
	// Admit takes from the rate limit and returns how long each delivery has to wait: nil if all may begin. The engine
	// calls Admit in the order of delivery, and only for a destination with a limit. Admit may query the database.
	Admit(all []Delivery) (waits []time.Duration)
	// Deliver hands over a parcel within the reserved capacity. unblock is nil here.
	Deliver(p *Parcel, unblock []Key)
	// TakeBack returns the deliveries of a parcel that no worker has begun.
	TakeBack(p *Parcel)
	// Slow reports whether it is a waste to wait for an answer with a transaction open.
	Slow() bool
	// Observe records that a delivery takes at least this long.
	Observe(atLeast time.Duration)
}

// StreamLane is the view of an engine that hands events over in order.
type StreamLane interface {
	// Destination returns what never changes about the destination.
	Destination() *Destination
	// Own gives the lane to the engine: nothing is in flight, and no aggregate is blocked. After Reserve refused something,
	// or the lane returned deliveries, the lane calls onCapacity once more deliveries may begin. onCapacity must not
	// block.
	Own(onCapacity func())
	// Withdraw returns all deliveries that no worker has begun. The lane takes nothing until the next Own.
	Withdraw()
	// Disown forgets the health of the destination, which another relay calls from now on. Nothing may be in flight.
	Disown()
	// Reserve reserves capacity and returns for how many deliveries.
	Reserve(r Request) int
	// Return returns unused reserved capacity.
	Return(n int)
	// Waits reports whether stored deliveries, or new ones, must wait: the destination may be down, and it is the turn of
	// the others to find out. Events over which the destination failed are stored: if they always went first, no new
	// event would be tried. New events wait once their aggregates have held back too many. The lane calls onCapacity
	// when the wait is over.
	Waits(stored bool) bool
	// Admit takes from the rate limit: see QueueLane.
	Admit(all []Delivery) (waits []time.Duration)
	// Deliver hands over a parcel within the reserved capacity. It unblocks aggregates: this parcel has the last of their
	// stored deliveries.
	Deliver(p *Parcel, unblock []Key)
	// SetRows records whether deliveries of the aggregate are stored.
	SetRows(key Key, rows Rows)
	// Order returns the state of the lane's order, and the state of one aggregate unless the key is zero.
	Order(key Key) Order
	// GoOn lets the lane take deliveries again, unless the lane has returned one since Order counted n. Before the call the
	// engine takes all answers from the parcels; after it, the engine hands over the returned deliveries first, by id.
	GoOn(n uint64) bool
}

// Destination is what never changes about a destination. All have the same one: who reads it writes nothing into it.
type Destination struct {
	Name string
	// Part is the number of the shard that the lane is of, from 0 to Shards less 1.
	Part int
	LaneConfig
	// Unordered, Total and BlockOnDead are LaneConfig.Order and OnDead, read once.
	Unordered, Total, BlockOnDead bool
	// Position is the handler if it keeps the position of its destination; nil if not.
	Position delivery.PositionKeeper

	clock *clock // the database's
}

func newDestination(name string, cfg LaneConfig) Destination {
	return Destination{
		Name: name, LaneConfig: cfg,
		Unordered: cfg.Order == delivery.OrderNone, Total: cfg.Order == delivery.OrderTotal, BlockOnDead: cfg.OnDead == delivery.OnDeadBlock,
	}
}

// Blocks reports whether a dead letter holds back the later events of its aggregate.
func (d *Destination) Blocks() bool { return d.BlockOnDead && !d.Unordered }

// Limited reports whether there is a rate limit. Then Admit comes before Deliver.
func (d *Destination) Limited() bool { return !d.RateLimit.IsZero() }

// Expires returns when an event gets too old to be delivered, by this relay's clock: see [Delivery.Expires]. It returns zero if
// events do not expire. written is Event.CreatedAt, a time of the database. available is
// when a delayed event became available, by this relay's clock, and zero for other events. The later time counts: a writer may make an event
// available before writing it.
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
	// Once says that the engine reads once for this capacity: the lane reserves nothing that is not worth a read.
	Once bool
	// Replay says that live deliveries go first. A replay fills half of the lane at most, and 2 ms of a fast lane, so that
	// a live delivery hardly waits. The lane reserves nothing for less than half of that: the engine asks again after
	// the answers.
	Replay bool
	// Held is how many deliveries of the replay the lane has.
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
