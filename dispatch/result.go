package dispatch

import (
	"context"
	"errors"
	"fmt"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/exhaust"
	"github.com/notifyd/notifyd/internal/health"
	"github.com/notifyd/notifyd/internal/safecall"
)

// result describes the failure of an event's delivery. The lane reads the handler's error once, under the same
// protection as the handler itself, because the error's methods may panic or block. No other code calls these
// methods.
type result struct {
	health.Result

	text    string
	err     error // for errors.Is and errors.As of observers; nil if its methods would panic
	refused bool  // unavailable because it refuses our credentials
	reopen  bool  // the outcome of the events is unknown: see delivery.PositionStore
}

// Error returns valid text of a bounded length.
func (r *result) Error() string { return r.text }

// Unauthorized implements the interface of [delivery.IsUnauthorized].
func (r *result) Unauthorized() bool { return r.refused }

// Unwrap returns the handler's error.
func (r *result) Unwrap() error { return r.err }

// reachable reports whether a result, or nil, shows that the destination works.
func (r *result) reachable() bool {
	if r == nil {
		return true
	}
	isSilent := r.Late || r.Unanswered || r.Exhausted
	return !isSilent && !r.Unavailable && !r.Unclear
}

// inRow returns the result of an unclear refusal that followed others, and counts as an outage.
func (r *result) inRow(n int) *result {
	alike := *r
	alike.text = fmt.Sprintf("%d events in a row were refused alike; the destination counts as down until it takes one: %s", n, r.text)
	return &alike
}

// target is the handler of a lane, with its optional interfaces.
type target struct {
	handler  delivery.Handler
	batch    delivery.BatchHandler // nil unless the handler takes batches
	reporter delivery.Reporter     // nil unless the handler implements it
	expired  error                 // the cause of a timed-out call
}

func newTarget(h delivery.Handler, cfg LaneConfig) (t target) {
	t.handler = h
	t.batch, _ = h.(delivery.BatchHandler)
	t.reporter, _ = delivery.As[delivery.Reporter](h)
	t.expired = fmt.Errorf("delivery timeout of %v: %w", cfg.Timeout, context.DeadlineExceeded)
	return t
}

// resultOf reads an error once for all that the lane needs. ctx is the context of the call.
func (t *target) resultOf(ctx context.Context, err error) *result {
	r := &result{}
	wrong := safecall.Call("it", func() {
		r.err = err
		if cause := context.Cause(ctx); cause != nil && errors.Is(err, ctx.Err()) && !errors.Is(err, cause) {
			err = fmt.Errorf("%w (%w)", cause, err) // names the timeout that ended the call
		}

		r.Unclear = delivery.IsUnclear(err)
		r.Permanent = delivery.IsPermanent(delivery.Proven(err))
		r.Unavailable = delivery.IsUnavailable(err)
		r.Throttled = delivery.IsThrottled(err)
		r.refused = delivery.IsUnauthorized(err)
		r.Late = errors.Is(err, t.expired)
		r.reopen = errors.Is(err, delivery.ErrReopen)
		r.Delay, _ = delivery.RetryDelay(err)
		r.Delay = min(max(r.Delay, 0), health.LongestWait)

		text := err.Error()
		if cure := exhaust.Cure(err); cure != "" {
			r.Exhausted = true
			text += ": " + cure
		}

		r.text = safecall.Clean(text)
	})
	if wrong != nil {
		text := fmt.Sprintf("the handler returned an error of type %T that cannot be inspected (is it a nil pointer?): %v", err, wrong)
		return &result{text: safecall.Clean(text)}
	}

	return r
}

// call calls the handler for one event. Nil means delivered.
func (t *target) call(ctx context.Context, e *delivery.Event) *result {
	returned, err := t.callOne(ctx, e)
	if err == nil {
		return nil
	}

	r := t.resultOf(ctx, err)
	r.Unanswered = !returned
	return r
}

// callOne reports whether the handler returned without a panic.
func (t *target) callOne(ctx context.Context, e *delivery.Event) (returned bool, err error) {
	defer safecall.Recover("the handler", &err)
	err = t.handler.Deliver(ctx, e)
	return true, err
}

// callBatch calls the handler for several events. Nil means all delivered.
func (t *target) callBatch(ctx context.Context, events []*delivery.Event) []*result {
	errs, err := t.callAll(ctx, events)
	if err == nil && errs != nil && len(errs) != len(events) {
		err = fmt.Errorf("the handler gave %d answers for %d events", len(errs), len(events))
	}

	if err != nil {
		r := t.resultOf(ctx, err)
		r.Unanswered = true
		return allFailed(len(events), r)
	}

	if errs == nil {
		return nil
	}

	results := make([]*result, len(errs))
	for i, err := range errs {
		if err != nil {
			results[i] = t.resultOf(ctx, err)
		}
	}

	return results
}

func (t *target) callAll(ctx context.Context, events []*delivery.Event) (errs []error, err error) {
	defer safecall.Recover("the handler", &err)
	return t.batch.DeliverBatch(ctx, events), nil
}

// allFailed returns r for each of n events.
func allFailed(n int, r *result) []*result {
	all := make([]*result, n)
	for i := range all {
		all[i] = r
	}
	return all
}
