package dispatch

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Event is one event on its way to one destination.
//
// A handler may keep an Event after Deliver has returned, but must not change
// it: in a fan-out the same payload and headers are seen by several handlers.
type Event struct {
	// ID is the primary key of the row in outbox_events. It is the same for
	// every attempt and every destination. What consumers drop duplicates by
	// is DedupeID.
	ID int64
	// Type routes the event, "order.created" for example. Never empty.
	Type string
	// AggregateType and AggregateID name the thing that the event is about.
	// Both are empty for events without one.
	AggregateType string
	AggregateID   string
	// Payload is the JSON text as the application wrote it, byte for byte.
	Payload json.RawMessage
	// Headers are the event's headers, nil where there are none.
	Headers map[string]string
	// CreatedAt is when the row was inserted, by the clock of the database.
	CreatedAt time.Time
	// Attempt is 1 for the first try, and one more for each failure counted
	// before. An attempt that was interrupted by a shutdown, or that met a
	// destination that was down, is not counted.
	Attempt int
	// Replay is how often this delivery has been a dead letter that somebody
	// replayed: 0 for nearly all. See DedupeID.
	Replay int
	// Destination is the name of the destination this delivery is for.
	Destination string
}

// DedupeID returns the text by which consumers drop duplicates: the event's id,
// "42", the same for every attempt; after the first replay of a dead letter
// "42r1", after the second "42r2". A replay is wanted, and may carry an edited
// payload, so nobody who remembers the id of an earlier delivery may drop it.
// A handler that gives its destination an id builds it from this one.
func (e *Event) DedupeID() string {
	id := strconv.FormatInt(e.ID, 10)
	if e.Replay > 0 {
		id += "r" + strconv.Itoa(e.Replay)
	}
	return id
}

// Handler delivers one event to one destination.
//
// Deliver returns nil once the destination has acknowledged the event, never
// before. What an error means is told by its chain: see [Permanent],
// [RetryAfter] and [Unavailable]; any other error is tried again with
// exponential backoff until the destination's attempts are used up.
// Deliver must return soon after ctx is done. It is called from several
// goroutines at once, as many as the destination's concurrency.
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

// miscounted is the error of a batch handler that did not answer for each event.
func miscounted(answers, events int) error {
	return fmt.Errorf("the handler gave %d answers for %d events", answers, events)
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

// Middleware wraps a [Handler] in another. A handler that is wrapped is called
// for one event at a time, unless the middleware returns a [BatchHandler].
type Middleware func(Handler) Handler

// Chain wraps h in the given middleware; the first one is the outermost.
func Chain(h Handler, mw ...Middleware) Handler {
	for _, wrap := range slices.Backward(mw) {
		h = wrap(h)
	}
	return h
}
