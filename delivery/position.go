package delivery

import (
	"context"
	"errors"
)

// PositionKeeper is implemented by a [BatchHandler] that can keep the position of its destination
// in a stream: how far the destination has come is stored at the destination, in one transaction
// with the events. So each event is there exactly once, whatever ends the relay.
//
// Its calls of DeliverBatch come one after the other, and only after OpenPosition. What a call is
// not certain of, it answers for all events with an error that wraps [ErrReopen]. A destination with several shards has a shard
// for each: [Shard] tells which one a call, also of OpenPosition, is about, and calls about different ones come side by side.
type PositionKeeper interface {
	// KeepsPosition reports whether the handler does so; it may be a matter of its settings. If not,
	// the handler is like any other.
	KeepsPosition() bool
	// OpenPosition begins the life of an owner of a shard, the name of which is the same for all its
	// owners and for no other shard. It makes sure that nothing that an earlier owner has begun, in
	// this process or elsewhere, is committed any more, and returns what was stored with the last
	// transaction that was; nil if there was none. DeliverBatch asks p from then on.
	OpenPosition(ctx context.Context, shard string, p Progress) (stored []byte, err error)
}

// Progress knows how far a shard has come. A [PositionKeeper] calls it from DeliverBatch, one call
// after the other.
type Progress interface {
	// With returns what is to be stored in the transaction that delivers these events.
	With(events []*Event) []byte
	// Committed records that the transaction of the last call of With was committed.
	Committed()
}

// ErrReopen is wrapped by the errors of a [PositionKeeper] that does not know what became of a
// transaction, or that has been replaced by another owner. The events are given back, no attempt
// counts, and nothing is delivered before OpenPosition has shown where the destination is.
var ErrReopen = errors.New("the position has to be read from the destination again")
