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

// verdict is what becomes of a delivery.
type verdict uint8

const (
	delivered verdict = iota + 1
	failed            // to be tried again after a delay
	dead              // given up
	released          // as if it had never been tried
	parked            // waits in the table for an earlier event of its aggregate
	aside             // to be tried again after a delay, and no attempt counted
)

// tally counts verdicts.
type tally [aside + 1]int

// outcome is the answer to a job.
type outcome struct {
	verdict  verdict
	failures int
	delay    time.Duration
	class    delivery.Class
	err      error
	from, to time.Duration // when the handler had it, since the chunk was begun

	throttled bool // the destination asked for fewer
	silent    bool // it has said nothing: the call was lost, or not answered in time
	behind    bool // of a parcel's job: see Answer.Behind
}

// answered reports whether the destination has said what becomes of the event.
func (o *outcome) answered() bool {
	return o.verdict == delivered || (o.verdict == failed || o.verdict == dead) && !o.silent
}

// called is what is known of a call that has failed.
type called struct {
	began  time.Time
	took   time.Duration
	proof  time.Time // when a call began that was answered just before, or with it; zero if none was
	shared bool      // it was for several events, and none of them was delivered
}

// says reports whether an error, or nil, is an answer of a destination that works.
func (l *lane) says(err error) bool {
	return err == nil || !delivery.IsUnavailable(err) && !errors.Is(err, l.expired)
}

// judged returns what becomes of a job after a call for it.
func (l *lane) judged(ctx context.Context, j *job, c *called, err error) outcome {
	if err == nil {
		return outcome{verdict: delivered}
	}
	return l.judge(ctx, j, c, err)
}

// judge decides what becomes of a failed delivery: whose fault it was, whether
// it is tried again, and when.
func (l *lane) judge(ctx context.Context, j *job, c *called, err error) outcome {
	failures := j.failures()
	if l.ctx.Err() != nil {
		// Whatever the handler says: it was interrupted.
		return outcome{verdict: released, failures: failures, class: delivery.ClassOurs, err: ErrStopping}
	}
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, ctx.Err()) && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", cause, err) // which of the timeouts it was
	}
	log := l.log.With("event_id", j.event.ID, "event_type", j.event.Type, "attempt", j.event.Attempt)
	late := errors.Is(err, l.expired)
	lost := delivery.IsUnavailable(err) || late && l.down() // a probe that is not answered in time says nothing about its event
	if lost {
		if out, nobodys := l.unavailable(log, j, c, err); nobodys {
			return out
		}
	} else if delivery.IsThrottled(err) {
		return l.throttle(log, j, c.began, err)
	}
	failures++
	out := outcome{verdict: failed, failures: failures, class: delivery.ClassEvent, err: err, silent: lost || late}
	if delivery.IsPermanent(err) || failures >= l.cfg.MaxAttempts {
		log.ErrorContext(ctx, "event is a dead letter", "class", delivery.ClassEvent, "permanent", delivery.IsPermanent(err), "err", err)
		l.observer.Observe(delivery.Incident{
			Kind: delivery.IncidentDead, Time: time.Now(), Destination: l.name, EventID: j.event.ID, EventType: j.event.Type, Err: err,
		})
		out.verdict = dead
		return out
	}
	delay, ok := delivery.RetryDelay(err)
	if !ok {
		delay = spreadWait(l.cfg.Backoff, failures)
	}
	out.delay = delay
	log.WarnContext(ctx, "delivery failed", "class", delivery.ClassEvent, "retry_in", delay, "err", err)
	return out
}

func (l *lane) down() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.breaker.open()
}

// follows returns what becomes of those of the same aggregate that failed in one call with a
// job and behind it; 0 if they are to be judged for themselves. Behind what is given
// back they are given back as well: stored, they would be found before it.
func (l *lane) follows(out *outcome) verdict {
	switch {
	case out.verdict == dead && !l.cfg.BlockOnDead && delivery.IsPermanent(out.err):
		return 0
	case out.verdict == released:
		return released
	}
	return parked
}
