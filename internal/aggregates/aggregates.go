// Package aggregates decides the next step of a stream's shard for each aggregate with stored deliveries. The lane
// knows which aggregates are blocked: later events of a blocked aggregate become rows behind the stored ones. So a
// blocked aggregate without a next step would stay blocked forever. Each step below ends: an answer, a due row or a
// person ends waiting, and the shard ends the other three.
//
//	step    | meaning                                              | parked | finished | written | free  | occupied | read
//	waiting | its first row runs, is due later, or is a dead       | check  | next     | waiting | ready | waiting  | -
//	        | letter that blocks                                   |        |          |         |       |          |
//	check   | its first row may wait for nothing                   | check  | next     | check   | ready | waiting  | -
//	next    | its first row is finished, which is not written yet  | next   | next     | ready   | next  | next     | -
//	ready   | its rows are about to be read and handed over        | ready  | next     | ready   | ready | ready    | waiting
//
// A replay that has yet to hand over earlier events holds its aggregates, and so does a row that the database refuses:
// written moves them from next and ready to check. A total order has one aggregate.
package aggregates

import (
	"slices"

	"github.com/notifyd/notifyd/dispatch"
)

// step is the next action of the shard for an aggregate.
type step uint8

const (
	stepWaiting step = iota
	stepCheck
	stepNext
	stepReady
)

// Cause moves an aggregate to another step.
type Cause uint8

const (
	// Parked means that a delivery of the aggregate became a parked row.
	Parked Cause = iota
	// Finished means that the delivery in front of stored rows is finished.
	Finished
	// Free means that no delivery is in front of its stored rows.
	Free

	written  // all known results of its rows are in the table
	held     // as written, but the aggregate is held
	occupied // a row in front is due later, or runs
	read     // its first rows are about to be read; their results move the aggregate
)

// after returns the step that follows a cause.
func (s step) after(c Cause) step {
	switch c {
	case Parked:
		return max(s, stepCheck)
	case Finished:
		return stepNext
	case written:
		if s == stepNext {
			return stepReady
		}

	case held:
		if s >= stepNext {
			return stepCheck
		}

	case Free:
		if s < stepNext {
			return stepReady
		}

	case occupied:
		if s == stepCheck {
			return stepWaiting
		}

	case read:
		return stepWaiting
	}
	return s
}

// Aggregate is an aggregate with stored deliveries that needs another step of the shard.
type Aggregate struct {
	// Key identifies the aggregate in the lane.
	Key dispatch.Key
	// Name is the ordering_key of its rows, or the name of the one queue of a total order.
	Name string

	step      step
	queued    bool // it is in the queue of ready aggregates
	unwritten bool // some of its rows are pending: the table does not have all of them
}

// Set has the aggregates that are not waiting, or have pending rows. Only the goroutine of the shard uses it.
type Set struct {
	all   map[dispatch.Key]*Aggregate
	queue []*Aggregate // ready aggregates, in the order in which they became ready, and some that no longer are
	nexts int          // how many have stepNext
}

// New returns an empty set.
func New() Set { return Set{all: make(map[dispatch.Key]*Aggregate)} }

// Move moves an aggregate to the step that follows a cause.
func (s *Set) Move(key dispatch.Key, name string, c Cause) {
	g := s.all[key]
	if g == nil {
		g = &Aggregate{Key: key, Name: name}
	}
	s.moveTo(g, g.step.after(c))
}

func (s *Set) moveTo(g *Aggregate, to step) {
	from := g.step
	g.step = to
	if from == to {
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

	s.all[g.Key] = g
}

// forget drops an aggregate that needs no further step.
func (s *Set) forget(g *Aggregate) {
	if g.step == stepWaiting && !g.unwritten {
		delete(s.all, g.Key)
	}
}

// Pending records that a row of the aggregate is about to be written. A zero key means no aggregate.
func (s *Set) Pending(key dispatch.Key, name string) {
	if key == (dispatch.Key{}) {
		return
	}

	g := s.all[key]
	if g == nil {
		g = &Aggregate{Key: key, Name: name}
		s.all[key] = g
	}

	g.unwritten = true
}

// Wrote records that all pending rows are in the table, except those of aggregates that are held.
func (s *Set) Wrote(holds func(name string) bool) {
	for _, g := range s.all {
		g.unwritten = false

		c := written
		if g.step >= stepNext && holds(g.Name) {
			c = held
		}

		s.moveTo(g, g.step.after(c))
		s.forget(g)
	}
}

// Unwritten reports whether rows of the aggregate are pending.
func (s *Set) Unwritten(key dispatch.Key) bool {
	g := s.all[key]
	return g != nil && g.unwritten
}

// AnyNext reports whether the first row of an aggregate is finished, and not written.
func (s *Set) AnyNext() bool { return s.nexts > 0 }

// Len returns the number of aggregates.
func (s *Set) Len() int { return len(s.all) }

// AnyReady reports whether an aggregate is ready.
func (s *Set) AnyReady() bool {
	for len(s.queue) > 0 && s.queue[0].step != stepReady {
		s.dequeue()
	}
	return len(s.queue) > 0
}

func (s *Set) dequeue() {
	s.queue[0].queued = false
	s.queue[0] = nil
	s.queue = s.queue[1:]
}

// UnwrittenReady reports whether rows of an aggregate that is ready are pending.
func (s *Set) UnwrittenReady() bool {
	return slices.ContainsFunc(s.queue, func(g *Aggregate) bool { return g.unwritten && g.step == stepReady })
}

// ToCheck returns the aggregates to check, without aggregates that are held. An aggregate with a running delivery
// waits: the last answer moves it, or it stays in front.
func (s *Set) ToCheck(busy func(dispatch.Key) bool, holds func(name string) bool) (all []*Aggregate) {
	for _, g := range s.all {
		switch {
		case g.step != stepCheck || holds(g.Name):
		case busy(g.Key):
			s.moveTo(g, g.step.after(occupied))
		default:
			all = append(all, g)
		}
	}
	return all
}

// Checked records the result of a check.
func (s *Set) Checked(g *Aggregate, isFree bool) {
	c := occupied
	if isFree {
		c = Free
	}
	s.moveTo(g, g.step.after(c))
}

// Take takes up to n ready aggregates. The caller reads their rows, and moves the aggregates.
func (s *Set) Take(n int) (some []*Aggregate) {
	for len(some) < n && s.AnyReady() {
		g := s.queue[0]
		s.dequeue()
		s.moveTo(g, g.step.after(read))
		some = append(some, g)
	}
	return some
}
