package stream

import (
	"slices"

	"github.com/notifyd/notifyd/dispatch"
)

// step is what the shard does next about an aggregate with stored deliveries. The lane knows which aggregates are
// blocked: later events of a blocked aggregate become rows behind the stored ones. So an aggregate that is blocked and has
// no step left would stay blocked forever. Each step below ends: after waiting an answer, a due row or a person moves
// the aggregate on; the shard itself ends the other three.
//
//	step    | meaning                                              | parked | finished | written | free  | occupied | read
//	waiting | its first row runs, is due later, or is a dead       | check  | next     | waiting | ready | waiting  | -
//	        | letter that blocks                                   |        |          |         |       |          |
//	check   | its first row may wait for nothing                   | check  | next     | check   | ready | waiting  | -
//	next    | its first row is finished, which is not written yet  | next   | next     | ready   | next  | next     | -
//	ready   | its rows are about to be read and handed over        | ready  | next     | ready   | ready | ready    | waiting
//
// A replay that has yet to hand over earlier events holds its aggregates: written moves them from next to check. A total order
// has one aggregate.
type step uint8

const (
	stepWaiting step = iota
	stepCheck
	stepNext
	stepReady
)

// cause is what moves an aggregate to another step.
type cause uint8

const (
	causeParked   cause = iota // a delivery of the aggregate became a parked row
	causeFinished              // the delivery in front of stored rows is finished
	causeWritten               // everything known about its rows is in the table
	causeHeld                  // as causeWritten, but a replay holds the aggregate
	causeFree                  // nothing is in front of its stored rows
	causeOccupied              // a row in front is due later, or runs
	causeRead                  // its first rows are about to be read: what becomes of them moves the aggregate on
)

// after returns the step that follows a cause.
func (s step) after(c cause) step {
	switch c {
	case causeParked:
		return max(s, stepCheck)
	case causeFinished:
		return stepNext
	case causeWritten:
		if s == stepNext {
			return stepReady
		}
	case causeHeld:
		if s == stepNext {
			return stepCheck
		}
	case causeFree:
		if s < stepNext {
			return stepReady
		}
	case causeOccupied:
		if s == stepCheck {
			return stepWaiting
		}
	case causeRead:
		return stepWaiting
	}
	return s
}

// aggregate is an aggregate with stored deliveries that the shard still has to do something about.
type aggregate struct {
	key       dispatch.Key
	name      string // the ordering_key of its rows; totalName for all rows of a total order
	step      step
	queued    bool // it is in the queue of those that are ready
	unwritten bool // some of its rows are pending: its rows in the table are not all
}

// aggregates has the aggregates that are not waiting, or have pending rows. Only the goroutine of the shard uses it.
type aggregates struct {
	all   map[dispatch.Key]*aggregate
	queue []*aggregate // those that are ready, in the order in which they became so, and some that are not any more
	nexts int          // how many have stepNext
}

func newAggregates() aggregates { return aggregates{all: make(map[dispatch.Key]*aggregate)} }

// move moves an aggregate to the step that follows a cause.
func (s *aggregates) move(key dispatch.Key, name string, c cause) {
	g := s.all[key]
	if g == nil {
		g = &aggregate{key: key, name: name}
	}
	s.moveTo(g, g.step.after(c))
}

func (s *aggregates) moveTo(g *aggregate, to step) {
	from := g.step
	if g.step = to; from == to {
		return
	}
	if from == stepNext {
		s.nexts--
	}
	switch to {
	case stepWaiting:
		s.forget(g)
		return
	case stepNext:
		s.nexts++
	case stepReady:
		if !g.queued {
			g.queued = true
			s.queue = append(s.queue, g)
		}
	case stepCheck:
	}
	s.all[g.key] = g
}

// forget drops an aggregate about which there is nothing left to do.
func (s *aggregates) forget(g *aggregate) {
	if g.step == stepWaiting && !g.unwritten {
		delete(s.all, g.key)
	}
}

// pending records that a row of the aggregate is about to be written; no key is no aggregate.
func (s *aggregates) pending(key dispatch.Key, name string) {
	if key == (dispatch.Key{}) {
		return
	}
	g := s.all[key]
	if g == nil {
		g = &aggregate{key: key, name: name}
		s.all[key] = g
	}
	g.unwritten = true
}

// wrote records that all pending rows are in the table. holds reports that a replay holds an aggregate.
func (s *aggregates) wrote(holds func(name string) bool) {
	for _, g := range s.all {
		g.unwritten = false
		c := causeWritten
		if g.step == stepNext && holds(g.name) {
			c = causeHeld
		}
		s.moveTo(g, g.step.after(c))
		s.forget(g)
	}
}

// unwritten reports whether rows of the aggregate are pending.
func (s *aggregates) unwritten(key dispatch.Key) bool {
	g := s.all[key]
	return g != nil && g.unwritten
}

// anyReady reports whether an aggregate is ready.
func (s *aggregates) anyReady() bool {
	for len(s.queue) > 0 && s.queue[0].step != stepReady {
		s.dequeue()
	}
	return len(s.queue) > 0
}

func (s *aggregates) dequeue() {
	s.queue[0].queued = false
	s.queue[0] = nil
	s.queue = s.queue[1:]
}

// unwrittenReady reports whether rows of an aggregate that is ready are pending.
func (s *aggregates) unwrittenReady() bool {
	return slices.ContainsFunc(s.queue, func(g *aggregate) bool { return g.unwritten && g.step == stepReady })
}

// checks returns the aggregates to look at, but for those that a replay holds. One of which a delivery runs waits: its last
// answer moves it on, or it stays in front.
func (s *aggregates) checks(busy func(dispatch.Key) bool, holds func(name string) bool) (look []*aggregate) {
	for _, g := range s.all {
		switch {
		case g.step != stepCheck || holds(g.name):
		case busy(g.key):
			s.moveTo(g, g.step.after(causeOccupied))
		default:
			look = append(look, g)
		}
	}
	return look
}

// looked records the result of a look at an aggregate.
func (s *aggregates) looked(g *aggregate, isFree bool) {
	c := causeOccupied
	if isFree {
		c = causeFree
	}
	s.moveTo(g, g.step.after(c))
}

// take takes up to n aggregates that are ready: the caller reads their rows, and moves them on.
func (s *aggregates) take(n int) (some []*aggregate) {
	for len(some) < n && s.anyReady() {
		g := s.queue[0]
		s.dequeue()
		s.moveTo(g, g.step.after(causeRead))
		some = append(some, g)
	}
	return some
}
