package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Middleware wraps a [Handler] in another. [Around] returns middleware that fits every handler; [Chain] lists the
// methods that other middleware must pass on.
type Middleware func(Handler) Handler

// ErrMiddleware is wrapped by the error about middleware that would take something away
// from the handler that it wraps.
var ErrMiddleware = errors.New("the middleware does not fit the handler")

// Chain wraps h in the given middleware; the first one is the outermost.
//
// A chain loses nothing unless a middleware declares it. [As] finds what else h can do behind
// any middleware. What decides how events are delivered is not passed on, because it would
// go past the middleware: around a [BatchHandler] each middleware has to return one, and
// around one that keeps the order of a batch it has to be an [OrderedBatchHandler]. The error
// about one that does not wraps [ErrMiddleware]. Who wants to give up batches wraps the
// handler with [OneByOne].
func Chain(h Handler, mw ...Middleware) (Handler, error) {
	for i, wrap := range slices.Backward(mw) {
		outer := wrap(h)
		if err := fits(outer, h); err != nil {
			return nil, fmt.Errorf("%w: number %d of %d, from the outside, %w", ErrMiddleware, i+1, len(mw), err)
		}
		h = chain(outer, h)
	}
	return h, nil
}

// fits returns what outer would take away from inner.
func fits(outer, inner Handler) error {
	_, batches := inner.(BatchHandler)
	_, stillBatches := outer.(BatchHandler)
	_, says := outer.(OrderedBatchHandler)

	switch {
	case outer == nil:
		return errors.New("returned no handler")
	case batches && !stillBatches:
		return errors.New("takes one event at a time, and what it wraps takes batches: make it with delivery.Around, " +
			"have it return a BatchHandler, or give up batches with delivery.OneByOne around the handler")
	case keepsOrder(inner) && !says:
		return errors.New("does not say whether it keeps the order of a batch, as what it wraps does: give it a method KeepsOrder")
	default:
		return nil
	}
}

// keepsOrder reports whether h may be given several events of an aggregate in one call.
func keepsOrder(h Handler) bool {
	k, ok := h.(OrderedBatchHandler)
	return ok && k.KeepsOrder()
}

// chain returns outer, which remembers inner.
func chain(outer, inner Handler) Handler {
	if batch, ok := outer.(BatchHandler); ok {
		return &batchLink{batch, inner}
	}
	return &link{outer, inner}
}

// link is a middleware's handler with the one that the middleware wraps.
type link struct {
	Handler

	inner Handler
}

func (l *link) parts() []Handler { return []Handler{l.Handler, l.inner} }

// batchLink is a link that takes batches.
type batchLink struct {
	BatchHandler

	inner Handler
}

func (l *batchLink) parts() []Handler { return []Handler{l.BatchHandler, l.inner} }

// KeepsOrder implements OrderedBatchHandler: as the middleware's handler has it.
func (l *batchLink) KeepsOrder() bool { return keepsOrder(l.BatchHandler) }

// As returns h as a T, or the outermost handler that is one of those which h wraps: those
// below [Chain], and those that a handler returns by a method Unwrap() Handler. It is
// for [Checker], [Previewer], [Reporter], [Sizer] and interfaces of your own that change
// nothing about deliveries. Whether a handler is a [BatchHandler] or an [OrderedBatchHandler] is for
// the outermost one alone to say.
func As[T any](h Handler) (found T, ok bool) {
	found, ok = h.(T)
	if ok || h == nil {
		return found, ok
	}

	switch outer := h.(type) {
	case interface{ parts() []Handler }:
		for _, part := range outer.parts() {
			found, ok = As[T](part)
			if ok {
				return found, true
			}
		}
	case interface{ Unwrap() Handler }:
		return As[T](outer.Unwrap())
	}

	return found, false
}

// OneByOne returns h as a handler that takes one event at a time, for middleware that
// cannot do otherwise. [As] still finds what else h can do.
func OneByOne(h Handler) Handler { return &link{HandlerFunc(h.Deliver), h} }

// Begin is called before an attempt to deliver e. It returns the context and the event for the handler, often ctx and e,
// and a function that gets the result of the attempt. If the handler panics, end gets an error.
type Begin func(ctx context.Context, e *Event) (inner context.Context, sent *Event, end func(err error))

// Around returns middleware that runs code before and after each attempt, for logs, metrics or traces. The handler keeps
// its interfaces: a batch is delivered as a batch, with one Begin per event. A batch call keeps its context; Around
// ignores the contexts that Begin returns for it.
func Around(begin Begin) Middleware {
	return func(h Handler) Handler {
		one := &around{h, begin}
		if batch, ok := h.(BatchHandler); ok {
			return &batchAround{one, batch}
		}
		return one
	}
}

// around does something around each event.
type around struct {
	handler Handler
	begin   Begin
}

// errPanicked is the answer of a handler that panicked.
var errPanicked = errors.New("the handler panicked")

// errNotCalled is the answer where the handler was not called, because the Begin of another event of the batch
// panicked.
var errNotCalled = errors.New("the handler was not called: the middleware panicked")

// Deliver implements Handler.
func (a *around) Deliver(ctx context.Context, e *Event) error {
	ctx, sent, end := a.begin(ctx, e)
	err := errPanicked // the caller gets the panic
	defer func() { end(err) }()
	err = a.handler.Deliver(ctx, sent)
	return err
}

// Unwrap returns the handler, for [As].
func (a *around) Unwrap() Handler { return a.handler }

// batchAround does something around each event of a batch.
type batchAround struct {
	*around

	batch BatchHandler
}

// DeliverBatch implements BatchHandler.
func (a *batchAround) DeliverBatch(ctx context.Context, events []*Event) (errs []error) {
	sent := make([]*Event, len(events))
	ends := make([]func(error), 0, len(events))
	whole := errNotCalled

	defer func() {
		endAll(ends, 0, func(i int) error {
			if whole != nil || errs == nil {
				return whole
			}
			return errs[i]
		})
	}()

	for i, e := range events {
		_, inner, end := a.begin(ctx, e)
		sent[i] = inner
		ends = append(ends, end)
	}

	whole = errPanicked
	errs = a.batch.DeliverBatch(ctx, sent)
	whole = nil

	if errs != nil && len(errs) != len(events) {
		whole = miscounted(len(errs), len(events))
	}

	return errs
}

// endAll calls the ends from the given one on with their answers, all of them, whatever one of them does.
func endAll(ends []func(error), from int, answer func(i int) error) {
	if from < len(ends) {
		defer endAll(ends, from+1, answer)
		ends[from](answer(from))
	}
}

// KeepsOrder implements OrderedBatchHandler: as the handler has it.
func (a *batchAround) KeepsOrder() bool { return keepsOrder(a.batch) }

// miscounted is the answer to a batch of a handler that did not answer for each event.
func miscounted(answers, events int) error {
	return fmt.Errorf("the handler gave %d answers for %d events", answers, events)
}
