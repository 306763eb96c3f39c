package dispatch

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/health"
)

// worker is a goroutine of a lane that calls the handler. A worker whose call does not return is
// given up: the patrol answers for its chunk, and another worker takes its place.
type worker struct {
	lane  *lane
	crew  int          // its place in lane.crew.all, which the lane's lock guards
	chunk chunk        // its jobs; it alone uses them, except the patrol that has given it up
	since atomic.Int64 // when the chunk was begun, since lane.crew.epoch
	// call is twice the number of the running call, plus 1; even between calls that lead to more
	// than the next one; gaveUp once the patrol answers for it. The goroutine that changes it away
	// from a call answers for that call.
	call atomic.Uint64
}

// gaveUp is the state of a worker that was given up.
const gaveUp = 1 << 63

// chunk is the set of jobs that a worker has taken, or the rest of them, and their outcomes.
type chunk struct {
	jobs  []*job
	outs  []outcome // of the jobs before the running call
	begin time.Time
	from  time.Duration // when the first call of these jobs began, since begin
	first uint64        // the number of that call
}

// begins starts the worker's calls for the jobs of a chunk.
func (w *worker) begins(c *chunk) {
	w.chunk = *c
	w.chunk.first = w.call.Load()/2 + 1
	w.since.Store(int64(c.begin.Sub(w.lane.crew.epoch)))
	w.call.Store(2*w.chunk.first + 1)
}

// goesOn moves the worker from the call for the job at a place to the next one, or to rest. It
// reports false if the worker was given up meanwhile: then it owns nothing any more.
func (w *worker) goesOn(place int, more bool) bool {
	call := 2*(w.chunk.first+uint64(place)) + 1 //nolint:gosec // not negative
	if more {
		return w.call.CompareAndSwap(call, call+2)
	}
	return w.call.CompareAndSwap(call, call+1)
}

// giveUp gives the worker up in the middle of the given call. It returns the place of the call's
// job in the chunk, and false if the call has returned.
func (w *worker) giveUp(call uint64) (place int, ok bool) {
	if call%2 == 0 || call >= gaveUp || !w.call.CompareAndSwap(call, gaveUp) {
		return 0, false
	}
	return int(call/2 - w.chunk.first), true //nolint:gosec // a place in a chunk
}

// work delivers its first jobs, then takes jobs from the queue until it is empty.
func (w *worker) work(buf []*job) {
	done := false
	defer func() {
		if !done { // the handler has ended the goroutine
			w.lane.crew.exits(w)
		}
	}()
	for ; buf != nil; buf = w.lane.take(w, buf) {
		switch rest := w.expires(w.shed(buf)); {
		case len(rest) == 0:
		case rest[0].Value.refused() != nil:
			w.refuse(rest[0])
		case w.lane.target.batch != nil:
			w.deliverBatch(rest)
		default:
			w.deliverEach(rest)
		}
		if w.call.Load() == gaveUp { // the patrol owns the chunk, including the buffer
			done = true
			w.lane.crew.returns(w)
			return
		}
	}
	done = true // and the worker may be another goroutine's already: it was on the bench
}

// shed returns the jobs, or nothing if it gave them all back: another relay may own jobs that would
// begin now, since the engine could not prove in time that it still owns them.
func (w *worker) shed(jobs []*job) []*job {
	if !anyLapsed(jobs) {
		return jobs
	}
	w.shedAll(jobs)
	return nil
}

// anyLapsed reports whether any of the jobs has lapsed. Either all or none of a parcel's jobs have,
// and each parcel is checked once: every check reads the clock.
func anyLapsed(jobs []*job) bool {
	var asked *Parcel
	for _, j := range jobs {
		if j.Value.parcel == asked {
			continue
		}
		if asked = j.Value.parcel; !asked.sure() {
			return true
		}
	}
	return false
}

// shedAll gives back all jobs that a worker has taken.
func (w *worker) shedAll(jobs []*job) {
	var late []*job
	w.lane.mu.Lock()
	for _, j := range jobs {
		if w.lane.target.batch != nil || j.First() {
			late = append(late, j) // the others are cut off with the first of their aggregate
		}
	}
	w.lane.mu.Unlock()
	outs := make([]outcome, len(late))
	for i := range outs {
		outs[i] = outcome{verdict: VerdictReleased, class: delivery.ClassOurs, err: errLapsed}
	}
	w.lane.finished(time.Now(), notBegun, late, outs)
}

// refuse buries a job, alone in its chunk, whose event must not be delivered. That says nothing
// about the destination.
func (w *worker) refuse(j *job) {
	err := j.Value.refused()
	out := w.lane.classify(w.lane.ctx, j, &health.Call{}, &reply{permanent: true, err: err, text: err.Error()})
	out.silent = true
	w.lane.finished(time.Now(), notBegun, []*job{j}, []outcome{out})
}

// notBegun is the duration of jobs for which the handler was not called.
const notBegun time.Duration = -1

// deliverEach delivers a chunk, one event at a time. The chunk shares one timeout: it holds more
// than one job only while a call takes microseconds, and is cut short by the first call that does
// not, or when no more deliveries are wanted.
func (w *worker) deliverEach(jobs []*job) {
	ctx, cancel := w.lane.callContext()
	defer cancel()
	c := chunk{jobs: jobs, outs: make([]outcome, len(jobs)), begin: time.Now()}
	for len(c.jobs) > 0 {
		n, r := w.deliverUntil(ctx, &c)
		if n == 0 {
			return // given up
		}
		w.lane.concludes(ctx, &c, n, r)
	}
}

// deliverUntil calls the handler for one job after the other, until a call fails or is slow, or all
// are delivered. It returns for how many jobs the handler was called, 0 if the worker was given up.
func (w *worker) deliverUntil(ctx context.Context, c *chunk) (n int, r *reply) {
	e := c.jobs[0].Value.event // an answer by the patrol may free the parcel for reuse
	w.begins(c)
	last := c.from
	for i := range c.jobs {
		r = w.lane.target.call(ctx, e)
		now := time.Since(c.begin) // reads one clock, time.Now reads two
		more := r == nil && i+1 < len(c.jobs) && now-last <= slowCall
		c.outs[i] = outcome{verdict: VerdictDelivered, from: last, to: now}
		if more {
			e = c.jobs[i+1].Value.event
		}
		if !w.goesOn(i, more) {
			return 0, nil
		}
		if !more {
			return i + 1, r
		}
		last = now
	}
	return 0, nil // there was no job
}

// deliverBatch delivers jobs in one call.
func (w *worker) deliverBatch(jobs []*job) {
	ctx, cancel := w.lane.callContext()
	defer cancel()
	c := chunk{jobs: jobs, begin: time.Now()}
	events := make([]*delivery.Event, len(jobs))
	for i, j := range jobs {
		events[i] = j.Value.event
	}
	w.begins(&c)
	replies := w.lane.target.callBatch(ctx, events)
	if w.goesOn(0, false) {
		w.lane.concludesBatch(ctx, &c, replies)
	}
}

// expires settles those of a worker's jobs whose events are too old by now, and returns the others. It
// comes last before the call. Only a destination with expires_after has such events.
func (w *worker) expires(jobs []*job) []*job {
	l := w.lane
	if l.dest.ExpiresAfter == 0 {
		return jobs
	}
	now := time.Now()
	var late, rest []*job
	for _, j := range jobs {
		if d := &j.Value.parcel.events[j.Value.work]; d.late(now) {
			l.log.Info("event has expired, and is not delivered", "event_id", j.Value.event.ID, "event_type", j.Value.event.Type, "expires_after", l.dest.ExpiresAfter)
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
