package dispatch

import (
	"context"
	"errors"
	"sync"
	"time"
)

// The lane counts an attempt after the call. An event that kills the process during the call would lose no attempt, and would be
// the first one after each start. So the call with a large event is recorded before it begins, and the record is deleted after the
// call. A record that remains shows that a process ended during the call: the attempt counts as failed. Several events may have been
// in flight, so the lane calls each of them alone until a call returns.

// largeEvent is the least payload, in bytes, of an event whose calls are recorded. A template that decodes a smaller one takes 30 MiB
// at most, which does not fill the memory of a process. A record costs less than the transfer of a large event.
const largeEvent = 1 << 20

// Calls records the calls with large events that have begun and not ended. It must be safe for concurrent use.
type Calls interface {
	// Begin records that a call begins with an event that was replayed some times, unless earlier calls have not ended: then it
	// returns their number.
	Begin(ctx context.Context, event int64, destination string, replays int) (calls int, err error)
	// Set records how many calls with an event have begun and not ended.
	Set(ctx context.Context, event int64, destination string, calls int) error
}

// errTurn is the error of a large event that waits for others.
var errTurn = errors.New("waits for a large event during whose call a process ended")

// turnLater is the delay of an event that waits for its turn.
const turnLater = time.Second

// recorded is the record of a call with a large event. It is nil for other calls.
type recorded struct {
	alone bool
	ended int // earlier calls during which a process ended
	isSet bool
}

// leastEnded is how many processes must have ended before an event is a dead letter. During the first call, others may have been in
// flight.
const leastEnded = 2

// end records that a call has ended. A released event has lost no attempt, and keeps the record of its earlier calls.
func (r *recorded) end(l *lane, j *job, v Verdict) {
	if r == nil {
		return
	}
	defer l.turns.end(r.alone)

	left := 0
	if v == VerdictReleased {
		j.Value.batch.addFailures(j, -r.ended)
		left = r.ended
	}

	if r.isSet {
		_ = l.calls.Set(l.ctx, j.Value.event.ID, l.dest.Name, left) // the Calls report it
	}
}

// turns lets most calls with large events run at the same time, and some alone.
type turns struct {
	mu      sync.Mutex
	running int
	alone   bool
	wanted  time.Time     // until then only calls that are alone begin
	changed chan struct{} // closed by the next change
}

// processTurns has the calls of all relays of the process, which end together.
var processTurns = newTurns() //nolint:gochecknoglobals // the process ends as a whole

func newTurns() *turns { return &turns{changed: make(chan struct{})} }

const (
	// turnWait bounds the wait for a turn: meanwhile the event takes a worker, and its lease is renewed.
	turnWait = 5 * time.Second
	// turnKept is how long the next turn belongs to a call that did not get one.
	turnKept = turnWait + 5*turnLater
)

// begin waits for a turn. It reports false after turnWait, and when ctx has ended.
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

// try takes a turn if it is free. Otherwise it returns a channel that the next change closes.
func (t *turns) try(alone bool) (ok bool, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()

	switch {
	case t.alone:
	case !alone && time.Now().After(t.wanted):
		t.running++
		return true, nil
	case alone && t.running == 0:
		t.alone = true
		t.wanted = time.Time{}
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
