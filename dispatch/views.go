package dispatch

import (
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// Engines find events to deliver and hand them to lanes: package queue claims events, package stream reads them in order.
// A lane is the way to one destination. Each engine has a view of it.

// QueueLane is the view of an engine without order: workers begin deliveries in any order.
type QueueLane interface {
	// Destination returns the constant properties of the destination.
	Destination() *Destination
	// Serve assigns the lane to the engine. After Reserve or Capacity refused something, the lane calls onCapacity
	// once more deliveries may begin. onCapacity must not block.
	Serve(onCapacity func())
	// Capacity returns how many deliveries may begin, and 0 if so few are not worth a claim. Stored deliveries also
	// get 0 while the destination may be down and a new delivery must find out.
	Capacity(stored bool) int
	// HasCapacity reports whether at least one delivery may begin.
	HasCapacity() bool
	// Reserve reserves capacity and returns the number of deliveries reserved.
	Reserve(r Request) int
	// Return returns unused reserved capacity.
	Return(n int)
	// Refused counts a delivery that found no capacity.
	Refused()
	// Admit takes from the rate limit and returns how long each delivery has to wait: nil if all may begin. The engine
	// calls Admit in the order of delivery, and only for a destination with a limit. Admit may query the database.
	// Deliveries whose keys would take longer than within get NotEvaluated; 0 means no bound.
	Admit(all []Delivery, within time.Duration) (waits []time.Duration)
	// RateKey returns the stored form of an event's key for the rate limit. It is empty if the destination has no keys, or if its
	// function fails.
	RateKey(e *delivery.Event) string
	// Deliver hands over a batch within the reserved capacity. unblock is nil here.
	Deliver(p *Batch, unblock []Key)
	// TakeBack returns the deliveries of a batch that no worker has begun.
	TakeBack(p *Batch)
	// Slow reports whether answers take too long to wait for with a transaction open.
	Slow() bool
	// Observe records that a delivery takes at least this long.
	Observe(atLeast time.Duration)
}

// StreamLane is the view of an engine with order.
type StreamLane interface {
	// Destination returns the constant properties of the destination.
	Destination() *Destination
	// Own assigns the lane to the engine: nothing is in flight, and no aggregate is blocked. After Reserve refused
	// something, or the lane returned deliveries, the lane calls onCapacity once more deliveries may begin.
	// onCapacity must not block.
	Own(onCapacity func())
	// Withdraw returns all deliveries that no worker has begun. The lane takes nothing until the next Own.
	Withdraw()
	// Disown forgets the health of the destination, because another relay delivers to it now. Nothing may be in flight.
	Disown()
	// Reserve reserves capacity and returns the number of deliveries reserved.
	Reserve(r Request) int
	// Return returns unused reserved capacity.
	Return(n int)
	// Waits reports whether stored deliveries, or new ones, must wait: the destination may be down, and the others
	// must find out. Events over which the destination failed are stored: if they always went first, no new event
	// would be tried. New events wait once their aggregates have held back too many. The lane calls onCapacity when
	// the wait is over.
	Waits(stored bool) bool
	// Chooses returns how many deliveries the lane wants to choose its next one among. It reports false while it begins
	// all deliveries in their order.
	Chooses() (among int, ok bool)
	// Admit takes from the rate limit: see QueueLane.
	Admit(all []Delivery, within time.Duration) (waits []time.Duration)
	// Deliver hands over a batch within the reserved capacity, then unblocks aggregates: the batch has the last of
	// their stored deliveries.
	Deliver(p *Batch, unblock []Key)
	// SetRows records whether deliveries of the aggregate are stored.
	SetRows(key Key, rows Rows)
	// Order returns the state of the lane's order, and the state of one aggregate unless the key is zero.
	Order(key Key) Order
	// GoOn resumes a stopped lane, unless the lane has returned a delivery since Order counted n. Before the call the
	// engine takes all answers from the batches; after the call it hands over the returned deliveries first, by id.
	GoOn(n uint64) bool
}

// Destination has the constant properties of a destination. All users share one value: do not modify it.
type Destination struct {
	Name string
	// Shard is the shard number of the lane, from 0 to Shards less 1.
	Shard int
	LaneConfig
	// Unordered, Total and BlockOnDead are decoded from LaneConfig.Order and OnDead.Then.
	Unordered, Total, BlockOnDead bool
	// Position is the handler if it keeps the position of its destination; otherwise nil.
	Position delivery.PositionStore
}

func newDestination(name string, cfg LaneConfig) Destination {
	return Destination{
		Name:        name,
		LaneConfig:  cfg,
		Unordered:   cfg.Order == delivery.OrderNone,
		Total:       cfg.Order == delivery.OrderTotal,
		BlockOnDead: cfg.OnDead.Then == delivery.OnDeadBlock,
	}
}

// Blocks reports whether a dead letter holds back the later events of its aggregate.
func (d *Destination) Blocks() bool { return d.BlockOnDead && !d.Unordered }

// Limited reports whether there is a rate limit. If so, call Admit before Deliver.
func (d *Destination) Limited() bool { return !d.RateLimit.IsZero() }

// Expires returns when an event expires, by this relay's clock: see [Delivery.Expires]. The result is zero if events
// do not expire. written is when the event was written, and available when a delayed event became available, zero for
// other events, both by this relay's clock. The later time counts, because a writer may make an event available before
// writing it.
func (d *Destination) Expires(written, available time.Time) time.Time {
	if d.ExpiresAfter == 0 {
		return time.Time{}
	}

	at := written.Add(d.ExpiresAfter)
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
	// Once means that the engine reads only once for this capacity: the lane reserves nothing that is not worth a
	// read.
	Once bool
	// Replay means that live deliveries take precedence. A replay fills at most half of the lane, and 2 ms of a fast
	// lane, so that live deliveries hardly wait. The lane reserves nothing below half of that limit: the engine asks
	// again after the answers.
	Replay bool
	// Held is how many replayed deliveries the lane already has.
	Held int
}

// Rows tells whether deliveries of an aggregate are stored.
type Rows uint8

const (
	// NoRows means that no delivery is stored, and the aggregate is not blocked.
	NoRows Rows = iota
	// SomeRows means that deliveries are stored, and later ones are parked.
	SomeRows
	// NewRow means that a delivery has just been stored to wait for its turn. Later ones are parked, as after a failure.
	NewRow
)

// Order is the state of the order of a lane.
type Order struct {
	// Blocked means that the aggregate is blocked.
	Blocked bool
	// Busy means that a delivery of the aggregate is in flight. If the last one is delivered while the aggregate is
	// blocked, its answer has Behind set.
	Busy bool
	// Aggregates is the number of blocked aggregates.
	Aggregates int
	// Failures counts from 1 how often a failure has blocked an aggregate. The answers of the counted failures are in
	// their batches, ready to take. Failures is 0 for a lane without order.
	Failures uint64
	// Returned counts the returned deliveries.
	Returned uint64
	// Stopped means that the lane has returned a delivery, and takes nothing until GoOn.
	Stopped bool
}
