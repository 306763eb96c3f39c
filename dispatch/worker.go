package dispatch

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
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

// work delivers what it is given, then from the queue until it is empty.
func (l *lane) work(buf []*job) {
	for ; buf != nil; buf = l.take(buf) {
		switch rest := l.shed(buf); {
		case len(rest) == 0:
		case l.batch != nil:
			l.deliverBatch(rest)
		default:
			l.deliverEach(rest)
		}
	}
}

// shed returns the jobs, or nothing if it gave them all back: what would begin now may
// be another relay's. Whoever handed it over could not show in time that it is still its own.
func (l *lane) shed(jobs []*job) []*job {
	if !anyLapsed(jobs) {
		return jobs
	}
	l.shedAll(jobs)
	return nil
}

// anyLapsed reports whether any of the jobs has lapsed. Those of a parcel have all or
// none, and are asked about once: the clock is read for each question.
func anyLapsed(jobs []*job) bool {
	var asked *Parcel
	for _, j := range jobs {
		if j.parcel == asked {
			continue
		}
		if asked = j.parcel; !asked.sure() {
			return true
		}
	}
	return false
}

// shedAll gives back all jobs that a worker has taken.
func (l *lane) shedAll(jobs []*job) {
	var late []*job
	l.mu.Lock()
	for _, j := range jobs {
		if l.batch != nil || j.agg == nil || j.agg.first == j {
			late = append(late, j) // the others are cut off with the first of their aggregate
		}
	}
	l.mu.Unlock()
	outs := make([]outcome, len(late))
	for i, j := range late {
		outs[i] = outcome{verdict: released, failures: j.failures(), class: delivery.ClassOurs, err: errLapsed}
	}
	l.finished(time.Now(), notBegun, late, outs)
}

// notBegun stands for how long the handler took, where it was not called.
const notBegun time.Duration = -1

func (l *lane) callContext() (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(l.ctx, l.cfg.Timeout, l.expired)
}

// deliverEach delivers a chunk, one event at a time. The chunk shares one
// timeout: it holds more than one job only while a call takes microseconds,
// and is cut short by the first call that does not, or is told that no more are wanted.
func (l *lane) deliverEach(jobs []*job) {
	ctx, cancel := l.callContext()
	defer cancel()
	begin := time.Now()
	last, told := time.Duration(0), time.Duration(0)
	done, outs := jobs[:0:0], make([]outcome, 0, len(jobs))
	for len(jobs) > 0 {
		j := jobs[0]
		jobs = jobs[1:]
		err := l.call(ctx, j.event)
		now := time.Since(begin) // reads one clock, time.Now reads two
		out := outcome{verdict: delivered}
		if err != nil {
			c := called{began: begin.Add(last), took: now - last}
			if n := len(outs); n > 0 {
				c.proof = begin.Add(outs[n-1].from)
			}
			out = l.judge(ctx, j, &c, err)
		}
		out.from, out.to = last, now
		done, outs = append(done, j), append(outs, out)
		if len(jobs) > 0 && (now-last > slowCall || err != nil && l.halted()) {
			l.untake(jobs)
			l.finished(begin, now-told, done, outs)
			return
		}
		if err != nil {
			jobs = l.finishedBefore(begin, now-told, done, outs, jobs)
			done, outs, told = done[:0], outs[:0], now
		}
		last = now
	}
	l.finished(begin, last-told, done, outs)
}

// deliverBatch delivers jobs in one call. Those behind a failed one of their
// aggregate were not delivered for that reason, whatever their error is.
func (l *lane) deliverBatch(jobs []*job) {
	ctx, cancel := l.callContext()
	defer cancel()
	begin := time.Now()
	events := make([]*delivery.Event, len(jobs))
	for i, j := range jobs {
		events[i] = j.event
	}
	errs := l.callBatch(ctx, events)
	elapsed := time.Since(begin)
	outs := make([]outcome, len(jobs))
	c := called{began: begin, took: elapsed, shared: len(jobs) > 1}
	if errs == nil || slices.ContainsFunc(errs, l.says) {
		c.proof, c.shared = begin, false
	}
	var broken map[*aggregate]verdict
	for i, j := range jobs {
		var err error
		if errs != nil {
			err = errs[i]
		}
		group := j.agg
		if v := broken[group]; err != nil && group != nil && v != 0 {
			outs[i] = outcome{verdict: v, failures: j.failures()}
			continue
		}
		outs[i] = l.judged(ctx, j, &c, err)
		outs[i].to = elapsed
		if outs[i].verdict != delivered && group != nil {
			if broken == nil {
				broken = make(map[*aggregate]verdict)
			}
			broken[group] = l.follows(&outs[i])
		}
	}
	l.finished(begin, elapsed, jobs, outs)
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

func (l *lane) call(ctx context.Context, e *delivery.Event) (err error) {
	defer recovered(&err)
	return l.handler.Deliver(ctx, e)
}

func (l *lane) callBatch(ctx context.Context, events []*delivery.Event) (errs []error) {
	var err error
	func() {
		defer recovered(&err)
		errs = l.batch.DeliverBatch(ctx, events)
	}()
	if err == nil && errs != nil && len(errs) != len(events) {
		err = miscounted(len(errs), len(events))
	}
	if err == nil {
		return errs
	}
	errs = make([]error, len(events))
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// recovered turns a panic into an error with the stack of the panic.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the handler panicked: %v\n%s", p, debug.Stack())
	}
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

// miscounted is the error of a batch handler that did not answer for each event.
func miscounted(answers, events int) error {
	return fmt.Errorf("the handler gave %d answers for %d events", answers, events)
}
