package delivery

import (
	"context"
)

// Handler delivers one event to one destination.
//
// Deliver returns nil once the destination has acknowledged the event, never before. The error's chain classifies a
// failure: see [Permanent], [Unclear], [RetryAfter], [Throttled] and [Unavailable]. The relay retries after any other error,
// with exponential backoff, until the destination's attempts are used up.
//
// Deliver must return soon after ctx is done. After 5 s more the relay gives the call up and counts the attempt.
// Whatever such a call still does may follow a second delivery of the event, or later events. The relay calls Deliver
// from several goroutines at once, as many as the destination's concurrency.
//
// A handler that holds resources also implements io.Closer. Its creator closes it once, after the last Deliver has
// returned.
type Handler interface {
	Deliver(ctx context.Context, e *Event) error
}

// HandlerFunc adapts a function to a [Handler].
type HandlerFunc func(ctx context.Context, e *Event) error

// Deliver calls f(ctx, e).
func (f HandlerFunc) Deliver(ctx context.Context, e *Event) error { return f(ctx, e) }

// BatchHandler is implemented by a [Handler] that can take several events in one call. A batch
// holds the events that are waiting, up to the destination's batch size: one event when the relay
// is idle, more under load. No event waits for a batch to fill.
//
// DeliverBatch answers for each event: a nil slice means that all were delivered, otherwise errs[i]
// belongs to events[i] and nil means delivered. A slice of any other length is a bug in the
// handler, and the whole batch counts as failed.
type BatchHandler interface {
	Handler
	DeliverBatch(ctx context.Context, events []*Event) (errs []error)
}

// OrderedBatchHandler is implemented by a [BatchHandler] that may get several events of one aggregate in
// one call even if their order is kept. Other batch handlers then get one event of each aggregate
// at a time. Without order, as in a queue, a call may hold any events.
type OrderedBatchHandler interface {
	// KeepsOrder reports whether DeliverBatch delivers the events of an aggregate in the order of
	// the batch, and none of them after an earlier one has failed with an error that is not
	// [Permanent]. In a [TotalOrder] all events of the call count as events of one aggregate.
	KeepsOrder() bool
}

type totalOrder struct{}

// WithTotalOrder returns a context for calls of a destination that gets all events one after the
// other.
func WithTotalOrder(ctx context.Context) context.Context {
	return context.WithValue(ctx, totalOrder{}, true)
}

// TotalOrder reports whether the call serves a destination with total order, which gets all events one after the other,
// whatever their aggregates. An [OrderedBatchHandler] that orders by aggregate must ask. A destination with an inherent order,
// such as a partition of a topic, keeps that order.
func TotalOrder(ctx context.Context) bool { return ctx.Value(totalOrder{}) != nil }

type noOrder struct{}

// WithoutOrder returns a context for calls of a destination whose events may arrive in any order: in a queue, and with
// [OrderNone] in a stream.
func WithoutOrder(ctx context.Context) context.Context {
	return context.WithValue(ctx, noOrder{}, true)
}

// Unordered reports whether the events of the call may arrive in any order. An [OrderedBatchHandler] may then deliver
// an event although an earlier one of its aggregate has failed.
func Unordered(ctx context.Context) bool { return ctx.Value(noOrder{}) != nil }

type shard struct{}

// WithShard returns a context for calls on behalf of one shard of a destination. Shards are numbered from 0.
func WithShard(ctx context.Context, part int) context.Context {
	return context.WithValue(ctx, shard{}, part)
}

// Shard returns the number of the shard on whose behalf a handler is called, and 0 for a destination with one shard. A
// [PositionStore] has to ask, because it keeps a position for each shard.
func Shard(ctx context.Context) int {
	part, _ := ctx.Value(shard{}).(int)
	return part
}

// BatchHandlerFunc adapts a function to a [BatchHandler].
type BatchHandlerFunc func(ctx context.Context, events []*Event) []error

// Deliver calls f with the one event.
func (f BatchHandlerFunc) Deliver(ctx context.Context, e *Event) error {
	errs := f(ctx, []*Event{e})
	switch {
	case errs == nil:
		return nil
	case len(errs) != 1:
		return miscounted(len(errs), 1)
	default:
		return errs[0]
	}
}

// DeliverBatch calls f(ctx, events).
func (f BatchHandlerFunc) DeliverBatch(ctx context.Context, events []*Event) []error {
	return f(ctx, events)
}

// Previewer is implemented by a [Handler] that can show the request for an event without sending it.
type Previewer interface {
	// Preview returns the message that Deliver would send for e, readable for people and without
	// any credential. It sends nothing and contacts no server. It fails where Deliver would fail
	// before sending.
	Preview(e *Event) (string, error)
}

// Checker is implemented by a [Handler] that can test whether its destination is usable, without
// sending anything to it.
type Checker interface {
	// Check connects and authenticates as Deliver would, and returns the obstacle to a delivery;
	// nil if none was found. It may be called before and between deliveries, leaves nothing at the
	// destination, and its error holds no credential.
	Check(ctx context.Context) error
}

// CheckDescriber is implemented by a [Checker] that describes the coverage of its check, so that operators do not take a
// passed check for proof that events arrive.
type CheckDescriber interface {
	// DescribeCheck returns what Check tests, empty for nothing, and what a delivery needs beyond
	// that: each as part of a sentence, such as "the TCP connection" and "the credentials".
	DescribeCheck() (tested, untested string)
}

// Sizer is implemented by a [Handler] with a largest message size.
type Sizer interface {
	// MaxBytes returns that size in bytes: an event whose payload alone is larger cannot be
	// delivered. It returns 0 where the size of a message does not follow from the payload.
	MaxBytes() int
}

// Reporter is implemented by a [Handler] that knows the state of its destination.
type Reporter interface {
	// Report returns the known state. It contacts no server and returns at once.
	Report() Report
}

// Report is the state of a handler at one moment.
type Report struct {
	// Connected reports an open connection. A handler that connects on first use reports false before.
	Connected bool
	// Blocked reports that the destination has asked for a pause, as RabbitMQ does when it runs out
	// of memory. Reason is its reason, verbatim.
	Blocked bool
	Reason  string
	// Unconfirmed is how many messages are sent and not answered yet.
	Unconfirmed int
}
