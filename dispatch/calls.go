package dispatch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// An attempt is recorded after its call. An event that kills the process during the call, for example because it takes too much
// memory, would be the first after each start, and no attempt would count. So the call with a large event is recorded before it
// begins. A record that is left is that of a call during which a process ended: it counts as a failed attempt. Several events may
// have been in flight then, so each of them is called alone from then on, until a call returns.

// largeEvent is the payload, in bytes, from which on a call with an event is recorded before it begins. A smaller one takes 30 MiB
// at most when a template decodes it, which does not fill the memory of a process. The record costs less than the transfer of
// such an event.
const largeEvent = 1 << 20

// Calls records the calls with large events that have begun and not ended. It must be safe for concurrent use.
type Calls interface {
	// Begin records that a call begins with an event that was replayed some times, unless earlier calls have not ended: then it
	// returns their number.
	Begin(ctx context.Context, event int64, destination string, replays int) (calls int, err error)
	// Set records how many calls with an event have begun and not ended.
	Set(ctx context.Context, event int64, destination string, calls int) error
}

// large reports whether the calls with the event are recorded.
func (l *lane) large(j *job) bool { return l.calls != nil && len(j.Value.event.Payload) >= largeEvent }

// errTurn is the error of a large event that waits for others.
var errTurn = errors.New("waits for a large event during whose call a process ended")

// turnLater is the delay of an event that waits for its turn.
const turnLater = time.Second

// recorded is the record of a call with a large event. It is nil for other calls.
type recorded struct {
	lane  *lane
	job   *job
	alone bool
	ended int // earlier calls during which a process ended
	isSet bool
}

// beginRecorded records the call of a large event, and waits for its turn. It returns false if there will be no call now: it has answered.
func (w *worker) beginRecorded(j *job) (r *recorded, ok bool) {
	l := w.lane
	e := j.Value.event
	r = &recorded{lane: l, job: j}
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
		w.refuse(j, fmt.Errorf("the process ended during each of the last %d calls with the event: raise the memory limit of the relay, or lower relay.max_event_bytes", ended))
		return nil, false
	}
	if !l.turns.begin(l.ctx, true) {
		w.turnAway(j)
		return nil, false
	}
	l.log.Warn("the process ended during the last call with an event", "event_id", e.ID, "event_type", e.Type, "bytes", len(e.Payload), "calls", ended)
	err = l.calls.Set(l.ctx, e.ID, l.dest.Name, ended+1)
	r.alone, r.ended, r.isSet = true, ended, err == nil
	j.Value.batch.addFailures(j, ended)
	return r, true
}

// leastEnded is the least number of calls during which a process ended before an event is set aside. Others may have been in flight
// during the first one.
const leastEnded = 2

// end records that a call has ended. A released event has lost no attempt, and keeps the record of its earlier calls.
func (r *recorded) end(v Verdict) {
	if r == nil {
		return
	}
	r.lane.turns.end(r.alone)
	left := 0
	if v == VerdictReleased {
		r.job.Value.batch.addFailures(r.job, -r.ended)
		left = r.ended
	}
	if r.isSet {
		_ = r.lane.calls.Set(r.lane.ctx, r.job.Value.event.ID, r.lane.dest.Name, left) // the Calls report it
	}
}

// turnAway makes an event wait for its turn.
func (w *worker) turnAway(j *job) {
	out := outcome{verdict: VerdictQuarantined, delay: turnLater, class: delivery.ClassRelay, err: errTurn}
	if w.lane.ctx.Err() != nil {
		out = outcome{verdict: VerdictReleased, class: delivery.ClassRelay, err: ErrStopping}
	}
	w.lane.finished(time.Now(), notBegun, []*job{j}, []outcome{out})
}

// turns lets calls with large events run together, and others alone.
type turns struct {
	mu      sync.Mutex
	running int
	alone   bool
	wanted  time.Time     // until then no call begins but one that is alone
	changed chan struct{} // closed by the next change
}

// processTurns has the calls of all relays of the process: all of them end with it.
var processTurns = newTurns()

func newTurns() *turns { return &turns{changed: make(chan struct{})} }

const (
	// turnWait bounds the wait for a turn: meanwhile the event takes a worker, and its lease is renewed.
	turnWait = 5 * time.Second
	// turnKept is how long a turn is kept for a call that has waited in vain.
	turnKept = turnWait + 5*turnLater
)

// begin waits for a turn. It reports false if there was none in time, or ctx has ended.
func (t *turns) begin(ctx context.Context, alone bool) bool {
	late := time.NewTimer(turnWait)
	defer late.Stop()
	for {
		ok, changed := t.try(alone)
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-late.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// try takes a turn if there is one. Otherwise it returns what is closed by the next change.
func (t *turns) try(alone bool) (ok bool, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.alone:
	case !alone && time.Now().After(t.wanted):
		t.running++
		return true, nil
	case alone && t.running == 0:
		t.alone, t.wanted = true, time.Time{}
		return true, nil
	case alone:
		t.wanted = time.Now().Add(turnKept)
	}
	return false, t.changed
}

// end ends a turn.
func (t *turns) end(alone bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if alone {
		t.alone = false
	} else {
		t.running--
	}
	close(t.changed)
	t.changed = make(chan struct{})
}
