package queue

import (
	"math"
	"time"
)

const (
	// firstSpan is how many ids a sweep may pass after one that took longer than the server allows:
	// so many dead index entries, or events of types to be skipped, take about a second. leastSpan is
	// the least that it may pass.
	firstSpan = 1 << 20
	leastSpan = 1 << 8
	// quickSpan and slowSpan are how long a sweep may take until its successor may pass twice as many
	// ids, or half as many.
	quickSpan = 250 * time.Millisecond
	slowSpan  = time.Second
)

// span bounds the ids that a sweep may pass. A sweep has a limit for the events that it finds, and
// none for the index entries that it steps over: those of events that are done and not vacuumed yet,
// and of types that it skips. So after a sweep that was cancelled, the next ones take the ids in
// steps. The scheduler's lock guards it.
type span struct {
	ids  int64 // 0: no bound
	last int64 // the highest id that was drawn, at the last bounded sweep; 0: unknown
}

// canceled records that a sweep took longer than the server allows.
func (s *span) canceled() {
	if s.ids == 0 {
		s.ids = firstSpan
		return
	}
	s.ids = min(max(s.ids/4, leastSpan), firstSpan)
}

// upto returns how far a sweep that begins after an id may go, at most to an id, and whether that is
// less far. Ids below 0, which
// only writers choose, come with the first step, and those above the last one that was drawn with
// the last step.
func (s *span) upto(after, most int64) (upto int64, step bool) {
	from := max(after, 0)
	if s.ids == 0 || s.last > 0 && from >= s.last || from > math.MaxInt64-s.ids {
		return most, false
	}
	upto = min(most, from+s.ids)
	return upto, upto < most
}

// took records how long a sweep took while sweeps are bounded.
//
// Where the role may not read the sequence, last is nil, and a run of steps would have no end: sweeps
// go on without a bound.
func (s *span) took(q *Query, d time.Duration, last *int64) {
	switch {
	case !q.Doubt: // asked before sweeps were bounded
		return
	case last == nil:
		s.ids = 0
		return
	}
	s.last = max(*last, s.last)
	switch {
	case !q.step:
	case d < quickSpan:
		s.ids = min(2*s.ids, math.MaxInt64/4)
	case d > slowSpan:
		s.ids = max(s.ids/2, leastSpan)
	}
}
