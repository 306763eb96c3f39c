package dispatch

import (
	"errors"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// Handlers that do not come back. A call that has not returned some time after its context
// has ended is given up: its event has failed, and another worker takes the place of the one that is
// in it. Goroutines cannot be ended, so the number of those is bounded.

const (
	// returnGrace is how long handlers may take to return once their context has ended.
	returnGrace = 5 * time.Second
	// patrolAgain is when a worker is looked at again that was between two calls.
	patrolAgain = time.Second
)

// errStuck is why a call was given up.
var errStuck = fmt.Errorf("the handler has not returned %v after the end of its context; what it does from now on is ignored, and may still deliver", returnGrace)

// errExited is why an event has failed whose handler has ended its goroutine.
var errExited = errors.New("the handler has ended its goroutine (runtime.Goexit)")

// errAllStuck is why a destination with too many calls of that kind gets nothing more.
var errAllStuck = errors.New("calls of the handler do not return, and there are as many of them as there may be: nothing more is begun until one does; the relay may have to be started again")

// patience is how long a chunk may take.
func (l *lane) patience() time.Duration { return min(l.cfg.Timeout, longestWait) + returnGrace }

// staffLocked is how many workers there may be. As many as that may be stuck beside them; each
// further one is missing.
func (l *lane) staffLocked() int { return min(l.cfg.Concurrency, 2*l.cfg.Concurrency-l.stuck) }

// hireLocked starts a worker with its first jobs.
func (l *lane) hireLocked(first []*job) {
	w := &worker{crew: len(l.crew)}
	if n := len(l.bench); n > 0 {
		w, l.bench = l.bench[n-1], l.bench[:n-1]
		w.crew = len(l.crew)
	}
	l.crew = append(l.crew, w)
	if !l.patrols {
		l.patrolInLocked(l.patience())
	}
	l.workers.Go(func() { l.work(w, first) })
}

// dismissLocked takes a worker out of the crew.
func (l *lane) dismissLocked(w *worker) {
	l.running--
	last := len(l.crew) - 1
	l.crew[w.crew] = l.crew[last]
	l.crew[w.crew].crew = w.crew
	l.crew[last] = nil
	l.crew = l.crew[:last]
}

func (l *lane) patrolInLocked(d time.Duration) {
	l.patrols = true
	if l.patrolTimer == nil {
		l.patrolTimer = time.AfterFunc(d, l.patrol)
		return
	}
	l.patrolTimer.Reset(d)
}

// lostCall is a call that was given up.
type lostCall struct {
	w     *worker
	place int
}

// patrol gives up the calls that should have returned, and comes again when the next one
// should have. It costs the workers nothing: a timer for each call would.
func (l *lane) patrol() {
	l.mu.Lock()
	now, limit := time.Since(l.epoch), l.patience()
	next := limit
	var lost []lostCall
	for _, w := range l.crew {
		call := w.call.Load() // before since: it is not younger than that
		left := limit - (now - time.Duration(w.since.Load()))
		if left <= 0 {
			if place, ok := w.giveUp(call); ok {
				lost = append(lost, lostCall{w, place})
				continue
			}
			left = patrolAgain
		}
		next = min(next, left)
	}
	for _, one := range lost {
		l.dismissLocked(one.w)
		l.stuck++
	}
	if l.patrols = len(l.crew) > 0; l.patrols {
		l.patrolInLocked(next)
	}
	full := len(lost) > 0 && l.staffLocked() <= 0
	l.mu.Unlock()
	for _, one := range lost {
		l.answerFor(one.w, one.place, &reply{text: l.expired.Error() + ": " + errStuck.Error(), err: errStuck, late: true})
	}
	if full {
		l.log.Error("destination is stuck", "class", delivery.ClassDestination, "calls", len(lost), "err", errAllStuck)
		l.observer.Observe(delivery.Incident{Kind: delivery.IncidentUnavailable, Time: time.Now(), Destination: l.name, Err: errAllStuck})
	}
}

// answerFor answers for the chunk of a worker in whose call for the job at a place something is wrong.
func (l *lane) answerFor(w *worker, place int, r *reply) {
	c := w.chunk
	if l.batch != nil {
		l.concludesBatch(l.ctx, &c, allFailed(len(c.jobs), r))
		return
	}
	l.untake(c.jobs[place+1:])
	outs := make([]outcome, place+1) // the handler may come back, and then the last one is written to
	copy(outs, c.outs[:place])
	outs[place].from, outs[place].to = c.from, time.Since(c.begin)
	if place > 0 {
		outs[place].from = outs[place-1].to
	}
	c.jobs, c.outs = c.jobs[:place+1], outs
	l.concludes(l.ctx, &c, place+1, r)
}

// exits takes the place of a worker whose handler has ended its goroutine.
func (l *lane) exits(w *worker) {
	call := w.call.Load()
	if call == gaveUp {
		l.returns(w)
		return
	}
	place, ok := w.giveUp(call)
	if !ok {
		return // it is no handler that has done this
	}
	l.mu.Lock()
	l.dismissLocked(w)
	l.mu.Unlock()
	l.answerFor(w, place, &reply{text: errExited.Error(), err: errExited})
}

// returns takes a call back that was given up. What it says is ignored.
func (l *lane) returns(w *worker) {
	l.mu.Lock()
	was := l.staffLocked()
	l.stuck--
	ends := was <= 0 && l.breaker.closed()
	if was <= 0 {
		l.hungry = true
	}
	call := l.wakeLocked()
	l.mu.Unlock()
	l.log.Warn("a call that was given up has returned; its answer is ignored", "after", time.Since(w.chunk.begin))
	if ends {
		l.available()
	}
	call()
}
