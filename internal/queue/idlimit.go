package queue

import (
	"math"
	"time"
)

const (
	// firstIDLimit is how many ids a sweep may pass after one that took longer than the server allows: so many dead
	// index entries, or events of skipped types, take about a second. leastIDLimit is the lower bound.
	firstIDLimit = 1 << 20
	leastIDLimit = 1 << 8
	// A bounded sweep shorter than quickSweep doubles the limit, and one longer than slowSweep halves it.
	quickSweep = 250 * time.Millisecond
	slowSweep  = time.Second
)

// idLimit bounds the ids that a sweep may pass. A sweep has a limit for events, but none for the index entries that
// it passes: events that are done and not vacuumed yet, and skipped types. So after a cancelled sweep, the next ones
// go through the ids in steps. The scheduler's lock guards it.
type idLimit struct {
	ids  int64 // 0 for no bound
	last int64 // the highest drawn id at the last bounded sweep; 0 for unknown
}

// canceled records that a sweep took longer than the server allows.
func (s *idLimit) canceled() {
	if s.ids == 0 {
		s.ids = firstIDLimit
		return
	}
	s.ids = min(max(s.ids/4, leastIDLimit), firstIDLimit)
}

// upto returns how far a sweep that begins after an id may go, at most to most, and whether the limit shortens it.
// Ids below 0, which only writers choose, belong to the first step, and ids above the last drawn one to the last
// step.
func (s *idLimit) upto(after, most int64) (upto int64, step bool) {
	from := max(after, 0)
	isLast := s.last > 0 && from >= s.last
	if s.ids == 0 || isLast || from > math.MaxInt64-s.ids {
		return most, false
	}
	upto = min(most, from+s.ids)
	return upto, upto < most
}

// took records how long a sweep took while sweeps are bounded.
//
// If the role may not read the sequence, last is nil, and a run of steps would have no end: sweeps continue without a
// bound.
func (s *idLimit) took(q *Query, d time.Duration, last *int64) {
	switch {
	case !q.OpenWriters: // sent before sweeps were bounded
		return
	case last == nil:
		s.ids = 0
		return
	}

	s.last = max(*last, s.last)

	switch {
	case !q.step:
	case d < quickSweep:
		s.ids = min(2*s.ids, math.MaxInt64/4)
	case d > slowSweep:
		s.ids = max(s.ids/2, leastIDLimit)
	}
}
