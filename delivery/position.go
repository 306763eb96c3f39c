package delivery

import (
	"context"
	"errors"
)

// PositionStore is implemented by a [BatchHandler] that can keep the position of its destination
// in a stream: how far the destination has come is stored at the destination, in one transaction
// with the events. So each event is there exactly once, whatever ends the relay.
//
// Its calls of DeliverBatch come one after the other, and only after OpenPosition. What a call is
// not certain of, it answers for all events with an error that wraps [ErrReopen]. A destination with several shards has a shard
// for each: [Call].Shard tells which one a call, also of OpenPosition, is about, and calls about different ones come side by side.
type PositionStore interface {
	// StoresPosition reports whether the handler, with its settings, stores positions. If not, the relay treats it like
	// any other handler.
	StoresPosition() bool
	// OpenPosition begins the term of a new owner of a shard. All owners of a shard use the same name, and no other
	// shard has it. OpenPosition ensures that no transaction of an earlier owner, in this process or elsewhere, can
	// still commit. It returns the position stored with the last committed transaction; nil if there was no transaction.
	// From then on DeliverBatch gets positions from p.
	OpenPosition(ctx context.Context, shard string, p Progress) (stored []byte, err error)
}

// Progress knows how far a shard has come. A [PositionStore] calls it from DeliverBatch, one call
// after the other.
type Progress interface {
	// With returns the position to store in the transaction that delivers these events.
	With(events []*Event) []byte
	// Committed records that the transaction of the last call of With was committed.
	Committed()
}

// ErrReopen is wrapped by the errors of a [PositionStore] that does not know the outcome of a transaction, or that
// another owner has replaced. The relay releases the events and counts no attempt. It delivers nothing more before
// OpenPosition has returned the destination's position.
var ErrReopen = errors.New("the position has to be read from the destination again")
