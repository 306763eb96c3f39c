package delivery

import "context"

// Call describes a call of a handler. The zero value is a call of a destination with one shard, whose events are ordered by
// aggregate.
type Call struct {
	// Shard is the number of the shard on whose behalf the handler is called, from 0. A [PositionStore] has to ask, because it
	// keeps a position for each shard.
	Shard int
	// TotalOrder reports whether the destination gets all events one after the other, whatever their aggregates. An
	// [OrderedBatchHandler] that orders by aggregate must ask. A destination with an inherent order, such as a partition of a
	// topic, keeps that order.
	TotalOrder bool
	// Unordered reports whether the events may arrive in any order: in a queue, and with [OrderNone] in a stream. An
	// [OrderedBatchHandler] may then deliver an event although an earlier one of its aggregate has failed.
	Unordered bool
}

type callKey struct{}

// CallOf returns the call with this context.
func CallOf(ctx context.Context) Call {
	c, _ := ctx.Value(callKey{}).(Call)
	return c
}

// WithCall returns a context for the call, as a relay makes it. It is for the tests of a handler.
func WithCall(ctx context.Context, c Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}
