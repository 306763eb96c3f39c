package dispatch

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/health"
)

// Handlers may fail to return. A call counts as stuck some time after the end of its context: its event has failed,
// and another worker replaces the stuck one. Goroutines cannot be ended, so the number of stuck ones is bounded.

const (
	// returnGrace is how long handlers may take to return once their context has ended.
	returnGrace = 5 * time.Second
	// watchAgain is the delay before the next check of a worker that was between two calls.
	watchAgain = time.Second
)

// errStuck is the error of a call that does not return.
var errStuck = fmt.Errorf("the handler has not returned %v after the end of its context: "+
	"it may still deliver, and its answer is ignored", returnGrace)

// errExited is the error of a handler or observer that ended its goroutine.
var errExited = errors.New("the handler ended its goroutine (runtime.Goexit)")

// errAllStuck is the error of a destination with so many stuck calls that no more begin.
var errAllStuck = errors.New("too many calls of the handler do not return: restart the relay if none of them returns")

// workers is the set of a lane's workers. The lane's lock guards it.
type workers struct {
	lane     *lane
	all      []*worker
	ended    []*worker      // ended, ready for reuse
	stuck    int            // calls that were taken over and have not returned
	busy     sync.WaitGroup // workers that are not stuck
	watching bool           // timer is set
	timer    *time.Timer    // finds calls that do not return; nil before the first call
	epoch    time.Time
}

// chunkLimit returns how long a chunk may take.
func (c *workers) chunkLimit() time.Duration {
	return min(c.lane.dest.Timeout, health.LongestWait) + returnGrace
}

// allowedLocked returns how many workers there may be. Concurrency calls may be stuck in addition; each further one
// takes the place of a worker.
func (c *workers) allowedLocked() int {
	return min(c.lane.dest.Concurrency, 2*c.lane.dest.Concurrency-c.stuck)
}

// allStuckLocked reports whether so many calls are stuck that no worker is allowed.
func (c *workers) allStuckLocked() bool { return c.stuck > 0 && c.allowedLocked() <= 0 }

// startLocked starts a worker with its first jobs.
func (c *workers) startLocked(first []*job) {
	w := &worker{lane: c.lane, index: len(c.all)}
	if n := len(c.ended); n > 0 {
		w = c.ended[n-1]
		c.ended = c.ended[:n-1]
		w.index = len(c.all)
	}

	c.all = append(c.all, w)

	if !c.watching {
		c.watchInLocked(c.chunkLimit())
	}

	c.busy.Add(1)
	c.lane.goroutines.Go(func() { w.work(first) })
}

// removeLocked removes a worker from the set.
func (c *workers) removeLocked(w *worker) {
	c.lane.running--
	last := len(c.all) - 1
	c.all[w.index] = c.all[last]
	c.all[w.index].index = w.index
	c.all[last] = nil
	c.all = c.all[:last]
	c.busy.Done()
}

func (c *workers) watchInLocked(d time.Duration) {
	if c.lane.ctx.Err() != nil {
		return // the relay has cancelled all calls
	}

	c.watching = true

	if c.timer == nil {
		c.timer = time.AfterFunc(d, c.watch)
		return
	}

	c.timer.Reset(d)
}

// stopWatchdog stops the watchdog, once the context of all calls has ended.
func (c *workers) stopWatchdog() {
	c.lane.mu.Lock()
	defer c.lane.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
}

// lostCall is a call that the watchdog took over.
type lostCall struct {
	w *worker
	i int
}

// watch takes over the calls that should have returned, and runs again when the next call should have. It costs the
// workers nothing, unlike a timer per call.
func (c *workers) watch() {
	c.lane.mu.Lock()

	now := time.Since(c.epoch)
	limit := c.chunkLimit()
	next := limit
	var lost []lostCall
	for _, w := range c.all {
		call := w.call.Load() // before since: call is not newer
		left := limit - (now - time.Duration(w.since.Load()))
		if left <= 0 {
			if i, ok := w.takeOver(call); ok {
				lost = append(lost, lostCall{w, i})
				continue
			}
			left = watchAgain
		}

		next = min(next, left)
	}

	for _, one := range lost {
		c.removeLocked(one.w)
		c.stuck++
	}

	c.watching = len(c.all) > 0
	if c.watching {
		c.watchInLocked(next)
	}

	full := len(lost) > 0 && c.allowedLocked() <= 0
	begins := full && c.lane.outage.begins(c.lane)
	c.lane.mu.Unlock()

	for _, one := range lost {
		c.answerFor(one.w, one.i, &result{text: c.lane.target.expired.Error() + ": " + errStuck.Error(), err: errStuck, Result: health.Result{Late: true}})
	}
	if full {
		c.lane.log.Error("destination is stuck", "class", delivery.ClassDestination, "calls", len(lost), "err", errAllStuck)
	}

	if begins {
		c.lane.observer.Observe(delivery.Incident{
			Kind:        delivery.IncidentDown,
			Time:        time.Now(),
			Destination: c.lane.dest.Name,
			Err:         errAllStuck,
		})
	}
}

// answerFor answers for a worker's chunk that failed in the i-th call.
func (c *workers) answerFor(w *worker, i int, r *result) {
	l := c.lane
	chunk := w.chunk
	if l.target.batch != nil {
		l.settleBatch(&chunk, allFailed(len(chunk.jobs), r))
		return
	}

	l.putBack(chunk.jobs[i+1:])
	outs := make([]outcome, i+1) // the handler may still return and write to the last outcome
	copy(outs, chunk.outs[:i])

	outs[i].from = chunk.from
	outs[i].to = time.Since(chunk.begin)
	if i > 0 {
		outs[i].from = outs[i-1].to
	}

	chunk.jobs = chunk.jobs[:i+1]
	chunk.outs = outs
	l.settle(&chunk, i+1, r)
}

// exited replaces a worker whose handler ended its goroutine.
func (c *workers) exited(w *worker) {
	call := w.call.Load()
	if call == takenOver {
		c.returned(w)
		return
	}

	i, ok := w.takeOver(call)
	if !ok {
		return // not a handler ended the goroutine
	}

	c.lane.mu.Lock()
	c.removeLocked(w)
	c.lane.mu.Unlock()
	c.answerFor(w, i, &result{text: "the handler: " + errExited.Error(), err: errExited, Result: health.Result{Unanswered: true}})
}

// returned records the return of a stuck call. Its answer is ignored.
func (c *workers) returned(w *worker) {
	c.lane.mu.Lock()
	was := c.allowedLocked()
	c.stuck--
	well := was <= 0 && c.lane.health.Available()
	ends := well && c.lane.outage.ends(c.lane)

	if was <= 0 {
		c.lane.engineWaits = true
	}
	if !c.lane.restingLocked() {
		c.lane.startWorkersLocked() // jobs handed over while no worker was allowed
	}

	call := c.lane.wakeLocked()
	c.lane.mu.Unlock()
	c.lane.log.Warn("stuck call returned", "after", time.Since(w.chunk.begin))

	if well {
		c.lane.available(time.Now(), ends)
	}

	call()
}
