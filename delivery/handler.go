package delivery

import (
	"context"
)

// Handler delivers one event to one destination.
//
// Deliver returns nil once the destination has acknowledged the event, never
// before. What an error means is told by its chain: see [Permanent],
// [RetryAfter] and [Unavailable]; any other error is tried again with
// exponential backoff until the destination's attempts are used up.
// Deliver must return soon after ctx is done: a call that has not 5 s later is given up, the attempt
// counts, and what the call does from then on may come after the event was delivered again, or after
// later ones. It is called from several goroutines at once, as many as the destination's concurrency.
//
// A handler that holds resources implements io.Closer as well; it is closed
// once, by whoever created it, after the last Deliver has returned.
type Handler interface {
	Deliver(ctx context.Context, e *Event) error
}

// HandlerFunc makes a [Handler] of a function.
type HandlerFunc func(ctx context.Context, e *Event) error

// Deliver calls f(ctx, e).
func (f HandlerFunc) Deliver(ctx context.Context, e *Event) error { return f(ctx, e) }

// BatchHandler is implemented by a [Handler] that can take several events in
// one go. A batch holds whatever is waiting, up to the destination's batch
// size: one event when the relay is idle, more under load. Nothing waits for a
// batch to fill.
//
// DeliverBatch answers for each event: a nil slice says that all were
// delivered, otherwise errs[i] belongs to events[i] and nil means delivered.
// A slice of any other length is a bug in the handler, and the whole batch
// counts as failed.
type BatchHandler interface {
	Handler
	DeliverBatch(ctx context.Context, events []*Event) (errs []error)
}

// OrderKeeper is implemented by a [BatchHandler] that may be given several
// events of one aggregate in one call where their order is kept. Others get one of each
// at a time then. Where it is not kept, as in a queue, a call may hold any events.
type OrderKeeper interface {
	// KeepsOrder reports whether DeliverBatch delivers the events of an
	// aggregate in the order in which they stand in the batch, and none of them
	// after an earlier one has failed with an error that is not [Permanent].
	KeepsOrder() bool
}

// BatchHandlerFunc makes a [BatchHandler] of a function.
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

// Previewer is implemented by a [Handler] that can show what it would send.
type Previewer interface {
	// Preview returns what Deliver would send for e, in a form for people to
	// read and without any credential. Nothing is sent and nobody is contacted.
	// It fails where Deliver would fail before sending.
	Preview(e *Event) (string, error)
}

// Checker is implemented by a [Handler] that can tell whether its destination can
// be used, without sending anything to it.
type Checker interface {
	// Check connects and proves who it is as Deliver would, and returns what would
	// keep it from delivering; nil if nothing is known to. It may be called before
	// and between deliveries, leaves nothing at the destination, and holds no credential in
	// its error.
	Check(ctx context.Context) error
}

// Sizer is implemented by a [Handler] whose messages have a largest size.
type Sizer interface {
	// MaxBytes is that size in bytes. An event whose payload alone is larger cannot
	// be delivered.
	MaxBytes() int
}

// Reporter is implemented by a [Handler] that knows how its destination is.
type Reporter interface {
	// Report returns what is known. It contacts nothing and returns at once.
	Report() Report
}

// Report is the state of a handler at one moment.
type Report struct {
	// Connected says that there is a connection. A handler that connects when it
	// is first used has none before.
	Connected bool
	// Blocked says that the destination has asked for a pause, as RabbitMQ does
	// when it runs out of memory, and Reason why, in its own words.
	Blocked bool
	Reason  string
	// Unconfirmed is how many messages are sent and not answered yet.
	Unconfirmed int
}
