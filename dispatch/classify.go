package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// ErrStopping is the cause of contexts of handlers that end because the relay stops.
var ErrStopping = errors.New("the relay is stopping")

// errLapsed is why deliveries that waited under a lease are given back.
var errLapsed = errors.New("the lease may have run out before the delivery began")

// verdict is the outcome of a delivery, as the lane sees it.
type verdict uint8

const (
	delivered verdict = iota + 1
	failed            // to be retried after a delay
	dead              // given up
	released          // as if it had never been tried
	parked            // waits in the table for an earlier event of its aggregate
	aside             // to be retried after a delay, without a counted attempt
	expired           // too old to be delivered, and done with
)

// Settles reports whether nothing is left to do: the destination has acknowledged the delivery, or does
// not get it any more.
func (v verdict) Settles() bool { return v == delivered || v == expired }

// tally counts verdicts.
type tally [expired + 1]int

// outcome is the answer to a job.
type outcome struct {
	verdict  verdict
	failures int
	delay    time.Duration
	class    delivery.Class
	err      error
	from, to time.Duration // when the handler ran, relative to the start of the chunk

	throttled bool // the destination requested fewer deliveries
	silent    bool // the destination has not answered: the call was lost, or timed out
	permanent bool // no attempt could have helped
	behind    bool // of a parcel's job: see Answer.Behind
}

// answered reports whether the destination itself has answered.
func (o *outcome) answered() bool {
	return o.verdict == delivered || (o.verdict == failed || o.verdict == dead) && !o.silent
}

// called describes a failed call.
type called struct {
	began  time.Time
	took   time.Duration
	proof  time.Time // when the previous answered call of the worker, or this one if it was answered, began; zero if there is none
	shared bool      // it was for several events, and none was delivered
}

// classify decides the outcome of a failed delivery: whose fault it was, whether to retry it, and
// when.
func (l *lane) classify(ctx context.Context, j *job, c *called, r *reply) outcome {
	failures := j.failures()
	if l.ctx.Err() != nil {
		// Whatever the handler says: it was interrupted.
		return outcome{verdict: released, failures: failures, class: delivery.ClassOurs, err: ErrStopping}
	}
	if l.dest.Position != nil && (r.reopen || r.late || r.unanswered) {
		l.ease.fault(c.began, r, false)
		return outcome{verdict: released, failures: failures, class: delivery.ClassDestination, err: fmt.Errorf("%w: %w", delivery.ErrReopen, r)}
	}
	log := l.log.With("event_id", j.event.ID, "event_type", j.event.Type, "attempt", j.event.Attempt)
	if r.exhausted && l.down() { // the probe has not asked the destination
		l.ease.fault(c.began, r, false)
		return outcome{verdict: released, failures: failures, class: delivery.ClassOurs, err: r}
	}
	if r.exhausted {
		return l.ease.throttle(log, j, c.began, r)
	}
	lost := r.unavailable || r.late && l.down() // an unanswered probe says nothing about its event; one that panics does
	if lost {
		if out, nobodys := l.ease.unavailable(log, j, c, r); nobodys {
			return out
		}
	} else if r.throttled {
		return l.ease.throttle(log, j, c.began, r)
	}
	if r.unanswered {
		l.ease.unanswered(j, c.began)
	}
	failures++
	out := outcome{verdict: failed, failures: failures, class: delivery.ClassEvent, err: r, silent: lost || r.late || r.unanswered, permanent: r.permanent}
	if r.permanent || failures >= l.dest.MaxAttempts {
		log.ErrorContext(ctx, "event is a dead letter", "class", delivery.ClassEvent, "permanent", r.permanent, "err", r)
		l.observer.Observe(delivery.Incident{
			Kind: delivery.IncidentDead, Time: time.Now(), Destination: l.dest.Name, EventID: j.event.ID, EventType: j.event.Type, Err: r,
		})
		out.verdict = dead
		return out
	}
	if out.delay = r.delay; !r.delays {
		out.delay = spreadWait(l.dest.Backoff, failures)
	}
	log.WarnContext(ctx, "delivery failed", "class", delivery.ClassEvent, "retry_in", out.delay, "err", r)
	return out
}

func (l *lane) down() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ease.breaker.open()
}

// follows returns the verdict for jobs of the same aggregate that failed behind a job in the same
// call; 0 if each must be classified by itself. Jobs behind a released one are released as well: stored
// ones would be found before it.
func (l *lane) follows(out *outcome) verdict {
	switch {
	case out.verdict == dead && !l.dest.BlockOnDead && out.permanent:
		return 0
	case out.verdict == released:
		return released
	}
	return parked
}
