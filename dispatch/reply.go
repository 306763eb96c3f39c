package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/guard"
)

// reply is what a handler has said of an event that it has not delivered. All that is asked of the
// handler's error is asked once, where a method of it that panics, or does not return, does
// no more harm than the handler itself: nobody else looks at it.
type reply struct {
	text        string
	err         error // for errors.Is and errors.As of observers; nil where asking would panic
	permanent   bool
	unavailable bool
	throttled   bool
	late        bool          // it has used up the timeout of the lane
	delay       time.Duration // that it asks for, if delays is set
	delays      bool
}

// Error returns valid text of a bounded length.
func (r *reply) Error() string { return r.text }

// Unwrap returns the handler's error.
func (r *reply) Unwrap() error { return r.err }

// replyOf asks an error all that is to be known. ctx is that of the call.
func (l *lane) replyOf(ctx context.Context, err error) *reply {
	r := &reply{}
	wrong := guard.Call("it", func() {
		r.err = err
		if cause := context.Cause(ctx); cause != nil && errors.Is(err, ctx.Err()) && !errors.Is(err, cause) {
			err = fmt.Errorf("%w (%w)", cause, err) // which of the timeouts it was
		}
		r.permanent, r.unavailable, r.throttled = delivery.IsPermanent(err), delivery.IsUnavailable(err), delivery.IsThrottled(err)
		r.late = errors.Is(err, l.expired)
		r.delay, r.delays = delivery.RetryDelay(err)
		r.delay = min(max(r.delay, 0), longestWait)
		r.text = guard.Clean(err.Error())
	})
	if wrong != nil {
		return &reply{text: guard.Clean(fmt.Sprintf("the handler returned an error of type %T that cannot be asked what it means (is it a nil pointer?): %v", err, wrong))}
	}
	return r
}

// call calls the handler for one event. It returns nil if that was delivered.
func (l *lane) call(ctx context.Context, e *delivery.Event) *reply {
	if err := l.callOne(ctx, e); err != nil {
		return l.replyOf(ctx, err)
	}
	return nil
}

func (l *lane) callOne(ctx context.Context, e *delivery.Event) (err error) {
	defer guard.Recover("the handler", &err)
	return l.handler.Deliver(ctx, e)
}

// callBatch calls the handler for several events. It returns nil if all were delivered.
func (l *lane) callBatch(ctx context.Context, events []*delivery.Event) []*reply {
	errs, err := l.callAll(ctx, events)
	if err == nil && errs != nil && len(errs) != len(events) {
		err = fmt.Errorf("the handler gave %d answers for %d events", len(errs), len(events))
	}
	if err != nil {
		return allFailed(len(events), l.replyOf(ctx, err))
	}
	if errs == nil {
		return nil
	}
	replies := make([]*reply, len(errs))
	for i, err := range errs {
		if err != nil {
			replies[i] = l.replyOf(ctx, err)
		}
	}
	return replies
}

func (l *lane) callAll(ctx context.Context, events []*delivery.Event) (errs []error, err error) {
	defer guard.Recover("the handler", &err)
	return l.batch.DeliverBatch(ctx, events), nil
}

// allFailed returns r for each of n events.
func allFailed(n int, r *reply) []*reply {
	all := make([]*reply, n)
	for i := range all {
		all[i] = r
	}
	return all
}
