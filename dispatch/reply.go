package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/backoff"
	"github.com/notifyd/notifyd/internal/exhaust"
	"github.com/notifyd/notifyd/internal/guard"
)

// reply is a handler's answer about an event that it has not delivered. The handler's error is
// queried once, where a method that panics, or does not return, does no more harm than the handler
// itself: no other code calls its methods.
type reply struct {
	text        string
	err         error // for errors.Is and errors.As of observers; nil where its methods would panic
	permanent   bool
	unavailable bool
	refused     bool // it is unavailable because it refuses our credentials
	throttled   bool
	exhausted   bool          // this machine had no file, port or memory for the call: nobody else is at fault
	late        bool          // it has used up the timeout of the lane
	reopen      bool          // it does not know what became of the events: see delivery.PositionKeeper
	unanswered  bool          // the handler has panicked, or ended its goroutine, which tells nothing about the destination
	delay       time.Duration // the delay that the error requests, if delays is set
	delays      bool
}

// Error returns valid text of a bounded length.
func (r *reply) Error() string { return r.text }

// Unauthorized is for [delivery.IsUnauthorized].
func (r *reply) Unauthorized() bool { return r.refused }

// Unwrap returns the handler's error.
func (r *reply) Unwrap() error { return r.err }

// says reports whether a reply, or nil, shows that the destination works.
func (r *reply) says() bool {
	return r == nil || !r.unavailable && !r.late && !r.unanswered && !r.exhausted
}

// target is the handler of a lane, with its optional interfaces.
type target struct {
	handler  delivery.Handler
	batch    delivery.BatchHandler // nil unless the handler takes batches
	reporter delivery.Reporter     // nil unless the handler is one
	expired  error                 // the cause of a call that timed out
}

func newTarget(h delivery.Handler, cfg LaneConfig) (t target) {
	t.handler = h
	t.batch, _ = h.(delivery.BatchHandler)
	t.reporter, _ = delivery.As[delivery.Reporter](h)
	t.expired = fmt.Errorf("delivery timeout of %v: %w", cfg.Timeout, context.DeadlineExceeded)
	return t
}

// replyOf queries an error once for everything that the lane needs. ctx is the context of the call.
func (t *target) replyOf(ctx context.Context, err error) *reply {
	r := &reply{}
	wrong := guard.Call("it", func() {
		r.err = err
		if cause := context.Cause(ctx); cause != nil && errors.Is(err, ctx.Err()) && !errors.Is(err, cause) {
			err = fmt.Errorf("%w (%w)", cause, err) // which of the timeouts it was
		}
		r.permanent, r.unavailable, r.throttled = delivery.IsPermanent(err), delivery.IsUnavailable(err), delivery.IsThrottled(err)
		r.refused = delivery.IsUnauthorized(err)
		r.late = errors.Is(err, t.expired)
		r.reopen = errors.Is(err, delivery.ErrReopen)
		r.delay, r.delays = delivery.RetryDelay(err)
		r.delay = min(max(r.delay, 0), backoff.Longest)
		text := err.Error()
		if cure := exhaust.Cure(err); cure != "" {
			r.exhausted, text = true, text+": "+cure
		}
		r.text = guard.Clean(text)
	})
	if wrong != nil {
		return &reply{text: guard.Clean(fmt.Sprintf("the handler returned an error of type %T that cannot be inspected (is it a nil pointer?): %v", err, wrong))}
	}
	return r
}

// call calls the handler for one event. It returns nil if the event was delivered.
func (t *target) call(ctx context.Context, e *delivery.Event) *reply {
	returned, err := t.callOne(ctx, e)
	if err == nil {
		return nil
	}
	r := t.replyOf(ctx, err)
	r.unanswered = !returned
	return r
}

// callOne reports whether the handler has returned, and not panicked.
func (t *target) callOne(ctx context.Context, e *delivery.Event) (returned bool, err error) {
	defer guard.Recover("the handler", &err)
	err = t.handler.Deliver(ctx, e)
	return true, err
}

// callBatch calls the handler for several events. It returns nil if all were delivered.
func (t *target) callBatch(ctx context.Context, events []*delivery.Event) []*reply {
	errs, err := t.callAll(ctx, events)
	if err == nil && errs != nil && len(errs) != len(events) {
		err = fmt.Errorf("the handler gave %d answers for %d events", len(errs), len(events))
	}
	if err != nil {
		r := t.replyOf(ctx, err)
		r.unanswered = true
		return allFailed(len(events), r)
	}
	if errs == nil {
		return nil
	}
	replies := make([]*reply, len(errs))
	for i, err := range errs {
		if err != nil {
			replies[i] = t.replyOf(ctx, err)
		}
	}
	return replies
}

func (t *target) callAll(ctx context.Context, events []*delivery.Event) (errs []error, err error) {
	defer guard.Recover("the handler", &err)
	return t.batch.DeliverBatch(ctx, events), nil
}

// allFailed returns r for each of n events.
func allFailed(n int, r *reply) []*reply {
	all := make([]*reply, n)
	for i := range all {
		all[i] = r
	}
	return all
}
