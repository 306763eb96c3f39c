package delivery

import "context"

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

// HandleJSON returns a [Handler] that decodes the payload of each event into a T, as [Event.DecodeJSON] does, and calls f with it. f
// returns what Deliver returns, and may be called from several goroutines at once. A payload that is not JSON, or does not fit a T,
// is [Permanent]: the event becomes a dead letter at once. Fields that T does not have are ignored, and a pointer is nil
// for a payload of null.
func HandleJSON[T any](f func(ctx context.Context, e *Event, payload T) error) Handler {
	return HandlerFunc(func(ctx context.Context, e *Event) error {
		var payload T
		if err := e.DecodeJSON(&payload); err != nil {
			return err
		}
		return f(ctx, e, payload)
	})
}

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

// OrderedBatchHandler is implemented by a [BatchHandler] that may get several events of one aggregate in
// one call even if their order is kept. Other batch handlers then get one event of each aggregate
// at a time. Without order, as in a queue, a call may hold any events.
type OrderedBatchHandler interface {
	// KeepsOrder reports whether DeliverBatch delivers the events of an aggregate in the order of
	// the batch, and none of them after an earlier one has failed with an error that is not
	// [Permanent]. With [Call].TotalOrder all events of the call count as events of one aggregate.
	KeepsOrder() bool
}
