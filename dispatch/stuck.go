package dispatch

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/backoff"
)

// Handlers that do not return. A call that has not returned some time after the end of its context
// is given up: its event has failed, and another worker replaces the one that is in it. Goroutines
// cannot be ended, so the number of lost ones is bounded.

const (
	// returnGrace is how long handlers may take to return once their context has ended.
	returnGrace = 5 * time.Second
	// patrolAgain is the delay before the next look at a worker that was between two calls.
	patrolAgain = time.Second
)

// errStuck is the error of a call that was given up.
var errStuck = fmt.Errorf("the handler has not returned %v after the end of its context; what it does from now on is ignored, and may still deliver", returnGrace)

// errExited is the error of an event whose handler has ended its goroutine, and of an observer that has.
var errExited = errors.New("it has ended its goroutine (runtime.Goexit)")

// errAllStuck is the reason why a destination with too many such calls gets no more events.
var errAllStuck = errors.New("calls of the handler do not return, and there are as many of them as there may be: nothing more is begun until one does; the relay may have to be started again")

// crew are the workers of a lane. The lane's lock guards it.
type crew struct {
	lane    *lane
	all     []*worker
	bench   []*worker      // that have ended
	stuck   int            // calls that were given up and have not returned
	busy    sync.WaitGroup // workers that were not given up
	patrols bool           // timer is set
	timer   *time.Timer    // looks for calls that do not return; nil before the first call
	epoch   time.Time
}

// patience is how long a chunk may take.
func (c *crew) patience() time.Duration {
	return min(c.lane.dest.Timeout, backoff.Longest) + returnGrace
}

// staffLocked returns how many workers there may be. As many calls as that may be stuck in
// addition; each further one takes the place of a worker.
func (c *crew) staffLocked() int {
	return min(c.lane.dest.Concurrency, 2*c.lane.dest.Concurrency-c.stuck)
}

// hireLocked starts a worker with its first jobs.
func (c *crew) hireLocked(first []*job) {
	w := &worker{lane: c.lane, crew: len(c.all)}
	if n := len(c.bench); n > 0 {
		w, c.bench = c.bench[n-1], c.bench[:n-1]
		w.crew = len(c.all)
	}
	c.all = append(c.all, w)
	if !c.patrols {
		c.patrolInLocked(c.patience())
	}
	c.busy.Add(1)
	c.lane.workers.Go(func() { w.work(first) })
}

// dismissLocked takes a worker out of the crew.
func (c *crew) dismissLocked(w *worker) {
	c.lane.running--
	last := len(c.all) - 1
	c.all[w.crew] = c.all[last]
	c.all[w.crew].crew = w.crew
	c.all[last] = nil
	c.all = c.all[:last]
	c.busy.Done()
}

func (c *crew) patrolInLocked(d time.Duration) {
	if c.lane.ctx.Err() != nil {
		return // the relay has given up on all calls
	}
	c.patrols = true
	if c.timer == nil {
		c.timer = time.AfterFunc(d, c.patrol)
		return
	}
	c.timer.Reset(d)
}

// stopPatrol ends the patrol, once the context of all calls has ended.
func (c *crew) stopPatrol() {
	c.lane.mu.Lock()
	defer c.lane.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
}

// lostCall is a call that was given up.
type lostCall struct {
	w     *worker
	place int
}

// patrol gives up the calls that should have returned, and runs again when the next one should
// have. It costs the workers nothing, unlike a timer for each call.
func (c *crew) patrol() {
	c.lane.mu.Lock()
	now, limit := time.Since(c.epoch), c.patience()
	next := limit
	var lost []lostCall
	for _, w := range c.all {
		call := w.call.Load() // before since: it is not newer
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
		c.dismissLocked(one.w)
		c.stuck++
	}
	if c.patrols = len(c.all) > 0; c.patrols {
		c.patrolInLocked(next)
	}
	full := len(lost) > 0 && c.staffLocked() <= 0
	begins := full && c.lane.outage.begins(c.lane)
	c.lane.mu.Unlock()
	for _, one := range lost {
		c.answerFor(one.w, one.place, &reply{text: c.lane.target.expired.Error() + ": " + errStuck.Error(), err: errStuck, late: true})
	}
	if full {
		c.lane.log.Error("destination is stuck", "class", delivery.ClassDestination, "calls", len(lost), "err", errAllStuck)
	}
	if begins {
		c.lane.observer.Observe(delivery.Incident{Kind: delivery.IncidentUnavailable, Time: time.Now(), Destination: c.lane.dest.Name, Err: errAllStuck})
	}
}

// answerFor answers for the chunk of a worker that failed in the call for the job at a place.
func (c *crew) answerFor(w *worker, place int, r *reply) {
	l, part := c.lane, w.chunk
	if l.target.batch != nil {
		l.concludesBatch(l.ctx, &part, allFailed(len(part.jobs), r))
		return
	}
	l.untake(part.jobs[place+1:])
	outs := make([]outcome, place+1) // the handler may still return, and then the last one is written to
	copy(outs, part.outs[:place])
	outs[place].from, outs[place].to = part.from, time.Since(part.begin)
	if place > 0 {
		outs[place].from = outs[place-1].to
	}
	part.jobs, part.outs = part.jobs[:place+1], outs
	l.concludes(l.ctx, &part, place+1, r)
}

// exits replaces a worker whose handler has ended its goroutine.
func (c *crew) exits(w *worker) {
	call := w.call.Load()
	if call == gaveUp {
		c.returns(w)
		return
	}
	place, ok := w.giveUp(call)
	if !ok {
		return // it was not a handler
	}
	c.lane.mu.Lock()
	c.dismissLocked(w)
	c.lane.mu.Unlock()
	c.answerFor(w, place, &reply{text: "the handler: " + errExited.Error(), err: errExited, unanswered: true})
}

// returns records the return of a call that was given up. Its answer is ignored.
func (c *crew) returns(w *worker) {
	c.lane.mu.Lock()
	was := c.staffLocked()
	c.stuck--
	well := was <= 0 && c.lane.health.Available()
	ends := well && c.lane.outage.ends(c.lane)
	if was <= 0 {
		c.lane.hungry = true
	}
	if !c.lane.restingLocked() {
		c.lane.employLocked() // what was handed over while there was nobody to begin with it
	}
	call := c.lane.wakeLocked()
	c.lane.mu.Unlock()
	c.lane.log.Warn("a call that was given up has returned; its answer is ignored", "after", time.Since(w.chunk.begin))
	if well {
		c.lane.available(ends)
	}
	call()
}
