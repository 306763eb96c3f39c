package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/backoff"
	"github.com/notifyd/notifyd/internal/health"
)

// ErrStopping is the cause of contexts of handlers that end because the relay stops.
var ErrStopping = errors.New("the relay is stopping")

// errLapsed is why deliveries that waited under a lease are given back.
var errLapsed = errors.New("the lease may have run out before the delivery began")

// Verdict is the outcome of a delivery.
type Verdict uint8

const (
	// VerdictDelivered says that the destination has acknowledged the delivery.
	VerdictDelivered Verdict = iota + 1
	// VerdictFailed says that the delivery is retried after a delay.
	VerdictFailed
	// VerdictDead says that the delivery has failed for the last time.
	VerdictDead
	// VerdictReleased says that the delivery is returned as if it had never been tried: the destination is down or throttles,
	// or the lane no longer begins deliveries.
	VerdictReleased
	// VerdictParked says that the delivery waits as a row: an earlier one of its aggregate must be dealt with first.
	VerdictParked
	// VerdictAside says that the delivery is retried after a delay, and no attempt counts.
	VerdictAside
	// VerdictExpired says that the event is too old: nothing is left to do.
	VerdictExpired
)

// counts reports whether an attempt counts.
func (v Verdict) counts() bool { return v == VerdictFailed || v == VerdictDead }

// Settles reports whether the delivery is finished: the destination has acknowledged it, or it has
// expired.
func (v Verdict) Settles() bool { return v == VerdictDelivered || v == VerdictExpired }

// outcome is the answer to a job.
type outcome struct {
	verdict  Verdict
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
	return o.verdict == VerdictDelivered || o.verdict.counts() && !o.silent
}

// classify decides the outcome of a failed delivery: whose fault it was, whether to retry it, and
// when.
func (l *lane) classify(ctx context.Context, j *job, c *health.Call, r *reply) outcome {
	if l.ctx.Err() != nil {
		// Whatever the handler says: it was interrupted.
		return outcome{verdict: VerdictReleased, class: delivery.ClassOurs, err: ErrStopping}
	}
	if l.dest.Position != nil && (r.reopen || r.late || r.unanswered) {
		l.fault(c.Began, r, false)
		return outcome{verdict: VerdictReleased, class: delivery.ClassDestination, err: fmt.Errorf("%w: %w", delivery.ErrReopen, r)}
	}
	log := l.log.With("event_id", j.Value.event.ID, "event_type", j.Value.event.Type, "attempt", j.Value.event.Attempt)
	if r.exhausted && l.down() { // the probe has not asked the destination
		l.fault(c.Began, r, false)
		return outcome{verdict: VerdictReleased, class: delivery.ClassOurs, err: r}
	}
	if r.exhausted {
		return l.throttle(log, j, c.Began, r)
	}
	lost := r.unavailable || r.late && l.down() // an unanswered probe says nothing about its event; one that panics does
	if lost {
		if out, nobodys := l.unavailable(log, j, c, r); nobodys {
			return out
		}
	} else if r.throttled {
		return l.throttle(log, j, c.Began, r)
	}
	if r.unanswered {
		l.unanswered(j, c.Began)
	}
	failures := j.Value.failures() + 1
	out := outcome{verdict: VerdictFailed, class: delivery.ClassEvent, err: r, silent: lost || r.late || r.unanswered, permanent: r.permanent}
	if r.permanent || failures >= l.dest.MaxAttempts {
		log.ErrorContext(ctx, "event is a dead letter", "class", delivery.ClassEvent, "permanent", r.permanent, "err", r)
		l.observer.Observe(delivery.Incident{
			Kind: delivery.IncidentDead, Time: time.Now(), Destination: l.dest.Name, EventID: j.Value.event.ID, EventType: j.Value.event.Type, Err: r,
		})
		out.verdict = VerdictDead
		return out
	}
	if out.delay = r.delay; !r.delays {
		out.delay = backoff.Wait(l.dest.Backoff, failures)
	}
	log.WarnContext(ctx, "delivery failed", "class", delivery.ClassEvent, "retry_in", out.delay, "err", r)
	return out
}

func (l *lane) down() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.health.Down()
}

// follows returns the verdict for jobs of the same aggregate that failed behind a job in the same
// call; 0 if each must be classified by itself. Jobs behind a released one are released as well: stored
// ones would be found before it.
func (l *lane) follows(out *outcome) Verdict {
	switch {
	case out.verdict == VerdictDead && !l.dest.BlockOnDead && out.permanent:
		return 0
	case out.verdict == VerdictReleased:
		return VerdictReleased
	}
	return VerdictParked
}

// unavailable records that the destination has failed over an event, and reports an outage once for all its lanes. It returns false if the event
// itself is at fault: the attempt counts.
func (l *lane) unavailable(log *slog.Logger, j *job, c *health.Call, err *reply) (out outcome, nobodys bool) {
	l.mu.Lock()
	now := time.Now()
	f := l.health.Lost(now, j.Value.event.ID, *c, err, j.Value.failures()+1 >= l.dest.MaxAttempts)
	if f.Longer {
		l.refuseLocked(now) // the events of this lane are to be looked for after the pause
	}
	begins := f.Opened && l.outage.begins(l)
	l.mu.Unlock()
	out = outcome{verdict: VerdictAside, delay: f.Delay, class: delivery.ClassDestination, err: err}
	if c.Shared {
		out.verdict = VerdictReleased // single calls will show which event is at fault
	}
	switch {
	case f.Counts:
		return out, false
	case f.Doubts:
		log.Info("the destination answers others and not this event; no attempt is counted yet", "class", delivery.ClassDestination, "retry_in", out.delay, "err", err)
	case begins:
		l.reportUnavailable(log, time.Now(), err)
	case f.Again && f.Longer:
		log.Info("destination has failed again before it was well", "class", delivery.ClassDestination, "pause", f.Pause, "err", err)
	default:
		log.Debug("destination is still unavailable", "class", delivery.ClassDestination, "pause", f.Pause, "err", err)
	}
	return out, true
}

func (l *lane) reportUnavailable(log *slog.Logger, now time.Time, err error) {
	log.Warn("destination is unavailable; its events wait, no attempt is counted", "class", delivery.ClassDestination, "err", err)
	l.observer.Observe(delivery.Incident{Kind: delivery.IncidentUnavailable, Time: now, Destination: l.dest.Name, Err: err})
}

// fault records that the destination did not answer a request that began at the given time and was not about one event. With news,
// fault reports the outage in any case.
func (l *lane) fault(began time.Time, err error, news bool) (pause time.Duration) {
	l.mu.Lock()
	now := time.Now()
	f := l.health.Fault(now, began, err)
	if f.Longer {
		l.refuseLocked(now)
	}
	begins := f.Opened && l.outage.begins(l)
	l.mu.Unlock()
	if begins || news {
		l.reportUnavailable(l.log, now, err)
		return f.Pause
	}
	l.log.Debug("destination is still unavailable", "class", delivery.ClassDestination, "pause", f.Pause, "err", err)
	return f.Pause
}

// answers lets deliveries through again, step by step.
func (l *lane) answers() {
	l.mu.Lock()
	now := time.Now()
	closes := l.health.Responds(now, l.capacityLocked())
	ends := closes && l.outage.ends(l)
	l.hungry = true
	l.armLocked(now)
	call := l.wakeLocked()
	l.mu.Unlock()
	l.tell(health.Change{Closes: closes}, ends)
	call()
}

// unanswered records that a call that began at the given time has ended without calling the destination to the end.
func (l *lane) unanswered(j *job, began time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.health.Unanswered(now, began, j.Value.failures() > 0) {
		l.refuseLocked(now)
	}
}

// throttle slows the lane down, because of a call that began at the given time, or puts the event aside if only that event
// is throttled. A machine that has run out of files, ports or memory throttles like a destination, and the fault is the
// relay's.
func (l *lane) throttle(log *slog.Logger, j *job, began time.Time, err *reply) outcome {
	out := outcome{verdict: VerdictReleased, class: delivery.ClassDestination, err: err, throttled: true}
	if err.exhausted {
		out.class = delivery.ClassOurs
	}
	l.mu.Lock()
	now := time.Now()
	t := l.health.Throttle(now, j.Value.event.ID, began, err.delay, 2*l.tempo.pace/time.Duration(max(1, l.running)))
	if t.Aside {
		out.verdict, out.delay = VerdictAside, t.Delay
	} else {
		l.refuseLocked(now)
	}
	l.mu.Unlock()
	switch {
	case t.Aside:
		log.Info("event is throttled by itself; it is put aside, no attempt is counted", "class", out.class, "retry_in", out.delay, "err", err)
	case t.Begins && err.exhausted:
		log.Warn("the machine has no room for more calls; the lane is slowed down, no attempt is counted", "class", out.class, "gap", t.Gap, "err", err)
	case t.Begins:
		log.Warn("destination throttles; its lane is slowed down, no attempt is counted", "class", delivery.ClassDestination, "gap", t.Gap, "wait", err.delay, "err", err)
	default:
		log.Debug("destination still throttles", "class", out.class, "gap", t.Gap, "wait", err.delay, "err", err)
	}
	return out
}
