package dispatch

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/health"
)

// worker is a goroutine of a lane that calls the handler. If a call does not return, the watchdog takes the worker
// over and answers for its chunk, and another worker replaces it.
type worker struct {
	lane  *lane
	index int          // index in lane.workers.all, guarded by the lane's lock
	chunk chunk        // used by the worker alone, until the watchdog takes over
	since atomic.Int64 // when the chunk began, since lane.workers.epoch
	// call is 2n+1 while the n-th call runs, and even between chunks. It is takenOver once the watchdog answers for
	// the worker. The goroutine that moves call away from a running call answers for that call.
	call atomic.Uint64
}

// takenOver is the call of a worker that the watchdog has taken over.
const takenOver = 1 << 63

// chunk is the set of jobs that a worker has taken and not finished, with their outcomes.
type chunk struct {
	jobs   []*job
	outs   []outcome // of the jobs before the running call
	begin  time.Time
	from   time.Duration // when the first call of these jobs began, relative to begin
	first  uint64        // number of that call
	record *recorded     // of the call with a large event, which is alone in its chunk; nil for other calls
}

// startCalls begins the calls for the jobs of a chunk.
func (w *worker) startCalls(c *chunk) {
	w.chunk = *c
	w.chunk.first = w.call.Load()/2 + 1
	w.since.Store(int64(c.begin.Sub(w.lane.workers.epoch)))
	w.call.Store(2*w.chunk.first + 1)
}

// advance ends the i-th call of the chunk, and begins the next one if more is true. It returns false if the watchdog
// has taken the worker over: the worker then owns nothing.
func (w *worker) advance(i int, more bool) bool {
	call := 2*(w.chunk.first+uint64(i)) + 1 //nolint:gosec // not negative
	if more {
		return w.call.CompareAndSwap(call, call+2)
	}
	return w.call.CompareAndSwap(call, call+1)
}

// takeOver takes the worker over in the middle of the given call. It returns the call's index in the chunk, and false
// if the call has returned.
func (w *worker) takeOver(call uint64) (i int, ok bool) {
	if call%2 == 0 || call >= takenOver || !w.call.CompareAndSwap(call, takenOver) {
		return 0, false
	}
	return int(call/2 - w.chunk.first), true //nolint:gosec // an index in a chunk
}

// work delivers its first jobs, then takes jobs from the queue until it is empty.
func (w *worker) work(buf []*job) {
	done := false
	defer func() {
		if !done { // the handler ended the goroutine
			w.lane.workers.exited(w)
		}
	}()

	for ; buf != nil; buf = w.lane.take(w, buf) {
		switch rest := w.expires(w.dropLapsed(buf)); {
		case len(rest) == 0:
		case rest[0].Value.refused() != nil:
			w.refuse(rest[0], rest[0].Value.refused())
		default:
			w.deliver(rest)
		}
		if w.call.Load() == takenOver { // the watchdog owns the chunk, including the buffer
			done = true
			w.lane.workers.returned(w)
			return
		}
	}

	done = true // another goroutine may already reuse the worker
}

// deliver calls the handler for jobs.
func (w *worker) deliver(jobs []*job) {
	var r *recorded
	if w.lane.large(jobs[0]) {
		var ok bool
		r, ok = w.beginRecorded(jobs[0])
		if !ok {
			return
		}

		if anyLapsed(jobs) { // while it waited for its turn
			r.end(w.lane, jobs[0], VerdictReleased)
			w.releaseAll(jobs)
			return
		}
	}

	if w.lane.target.batch != nil {
		w.deliverBatch(jobs, r)
	} else {
		w.deliverEach(jobs, r)
	}
}

// beginRecorded waits for the turn of a large event, and records its call. It returns false if the handler must not be called: the
// job is answered.
func (w *worker) beginRecorded(j *job) (r *recorded, ok bool) {
	l := w.lane
	e := j.Value.event
	r = &recorded{}

	if !l.turns.begin(l.ctx, false) {
		w.turnAway(j)
		return nil, false
	}

	ended, err := l.calls.Begin(l.ctx, e.ID, l.dest.Name, e.Replay)
	r.isSet = err == nil
	if ended == 0 { // after an error as well: the event is delivered
		return r, true
	}

	l.turns.end(false)

	failures := j.Value.failures() + ended
	if failures >= max(l.dest.MaxAttempts, leastEnded) {
		// The record stays: the process may end again before the dead letter is written.
		j.Value.batch.addFailures(j, ended-1)
		w.refuse(j, fmt.Errorf("the process ended during each of the last %d calls with the event: "+
			"raise the memory limit of the relay, or lower relay.max_event_bytes", ended))
		return nil, false
	}

	if !l.turns.begin(l.ctx, true) {
		w.turnAway(j)
		return nil, false
	}

	l.log.Warn("the process ended during the last call with an event",
		"event_id", e.ID, "event_type", e.Type, "bytes", len(e.Payload), "calls", ended)
	err = l.calls.Set(l.ctx, e.ID, l.dest.Name, ended+1)
	r.alone = true
	r.ended = ended
	r.isSet = err == nil
	j.Value.batch.addFailures(j, ended)

	return r, true
}

// turnAway makes an event wait for its turn.
func (w *worker) turnAway(j *job) {
	out := outcome{verdict: VerdictQuarantined, delay: turnLater, class: delivery.ClassRelay, err: errTurn}
	if w.lane.ctx.Err() != nil {
		out = outcome{verdict: VerdictReleased, class: delivery.ClassRelay, err: ErrStopping}
	}
	w.lane.finished(time.Now(), notBegun, []*job{j}, []outcome{out})
}

// dropLapsed returns the jobs, or releases them all and returns nil if a lease has lapsed: another relay may hold the
// jobs, because the engine could not renew in time.
func (w *worker) dropLapsed(jobs []*job) []*job {
	if !anyLapsed(jobs) {
		return jobs
	}
	w.releaseAll(jobs)
	return nil
}

// anyLapsed reports whether any job has lapsed. All jobs of a batch lapse together, so each batch is checked once:
// a check reads the clock.
func anyLapsed(jobs []*job) bool {
	var asked *Batch
	for _, j := range jobs {
		if j.Value.batch == asked {
			continue
		}

		asked = j.Value.batch
		if !asked.valid() {
			return true
		}
	}

	return false
}

// releaseAll releases all jobs that a worker has taken.
func (w *worker) releaseAll(jobs []*job) {
	var late []*job

	w.lane.mu.Lock()
	for _, j := range jobs {
		if w.lane.target.batch != nil || j.First() {
			late = append(late, j) // the first of an aggregate cuts off the others
		}
	}
	w.lane.mu.Unlock()

	outs := make([]outcome, len(late))
	for i := range outs {
		outs[i] = outcome{verdict: VerdictReleased, class: delivery.ClassRelay, err: errLapsed}
	}

	w.lane.finished(time.Now(), notBegun, late, outs)
}

// refuse makes a dead letter of a job whose event must not be delivered. The job is alone in its chunk. The
// destination's health is not affected.
func (w *worker) refuse(j *job, err error) {
	out := w.lane.classify(j, &health.Call{}, &result{Result: health.Result{Permanent: true}, err: err, text: err.Error()})
	out.silent = true
	w.lane.finished(time.Now(), notBegun, []*job{j}, []outcome{out})
}

// notBegun is the duration of jobs whose handler was not called.
const notBegun time.Duration = -1

// deliverEach delivers a chunk, one event at a time, with one timeout. A chunk has several jobs only while a call
// takes microseconds. A slower call, or the end of deliveries, cuts the chunk short.
func (w *worker) deliverEach(jobs []*job, r *recorded) {
	ctx, cancel := w.lane.callContext()
	defer cancel()

	c := chunk{jobs: jobs, outs: make([]outcome, len(jobs)), begin: time.Now(), record: r}
	for len(c.jobs) > 0 {
		n, r := w.deliverUntil(ctx, &c)
		if n == 0 {
			return // the watchdog has taken over
		}
		w.lane.settle(&c, n, r)
	}
}

// deliverUntil calls the handler for one job after the other, until a call fails or is slow, or the jobs end. It
// returns the number of calls, 0 if the watchdog took over.
func (w *worker) deliverUntil(ctx context.Context, c *chunk) (n int, r *result) {
	e := c.jobs[0].Value.event // read first: the watchdog's answer may free the batch for reuse
	w.startCalls(c)
	last := c.from
	for i := range c.jobs {
		r = w.lane.target.call(ctx, e)
		now := time.Since(c.begin) // reads one clock, time.Now reads two

		more := r == nil && i+1 < len(c.jobs) && now-last <= slowCall
		c.outs[i] = outcome{verdict: VerdictDelivered, from: last, to: now}
		if more {
			e = c.jobs[i+1].Value.event
		}
		if !w.advance(i, more) {
			return 0, nil
		}
		if !more {
			return i + 1, r
		}

		last = now
	}

	return 0, nil // no jobs
}

// deliverBatch delivers jobs in one call.
func (w *worker) deliverBatch(jobs []*job, r *recorded) {
	ctx, cancel := w.lane.callContext()
	defer cancel()

	c := chunk{jobs: jobs, begin: time.Now(), record: r}
	events := make([]*delivery.Event, len(jobs))
	for i, j := range jobs {
		events[i] = j.Value.event
	}

	w.startCalls(&c)
	results := w.lane.target.callBatch(ctx, events)
	if w.advance(0, false) {
		w.lane.settleBatch(&c, results)
	}
}

// expires settles the expired jobs of a worker, and returns the others. It runs last before the call. Only
// destinations with expires_after have such jobs.
func (w *worker) expires(jobs []*job) []*job {
	l := w.lane
	if l.dest.ExpiresAfter == 0 {
		return jobs
	}

	now := time.Now()
	var late, rest []*job
	for _, j := range jobs {
		if d := &j.Value.batch.events[j.Value.index]; d.late(now) {
			l.log.Info("event expired",
				"event_id", j.Value.event.ID, "event_type", j.Value.event.Type, "expires_after", l.dest.ExpiresAfter)
			late = append(late, j)
			continue
		}
		rest = append(rest, j)
	}

	if late == nil {
		return jobs
	}

	outs := make([]outcome, len(late))
	for i := range outs {
		outs[i] = outcome{verdict: VerdictExpired}
	}

	l.finished(now, notBegun, late, outs)
	return rest
}
