package dispatch

import "time"

const (
	// freeThrottles is how often an event may be throttled before it is put aside,
	// where others are answered.
	freeThrottles = 3
	// blindThrottles is the same where nothing else is answered: as the oldest one
	// it would be tried first for ever, and nobody would know about the others. If
	// they are throttled as well, it takes twice as many for the next one.
	blindThrottles = 3
	// maxBlindThrottles ends the doubling.
	maxBlindThrottles = 10_000
	// maxLoners bounds what is remembered.
	maxLoners = 10_000
	// loneExpiry is how long after its time an event is remembered that does not come.
	loneExpiry = time.Minute
)

// loners tell a destination that wants fewer deliveries from one that never wants a
// certain event and says so with the same words. Without it, one such event
// would keep a lane at its slowest. The lane's lock guards it; nil knows nobody.
type loners struct {
	events  map[int64]*loner
	answers uint64 // to any event, since the first loner
	blind   int    // how often the next event may be throttled; 0 is blindThrottles
	pruned  time.Time
}

type loner struct {
	times   int
	blind   int    // of those, since it was put aside without proof
	aside   int    // how often it was put aside
	answers uint64 // when it was first throttled
	until   time.Time
}

// throttled notes that an event was throttled. It returns how often the event has
// been put aside by now, 0 if it is not to be: then the destination is meant.
func (s *loners) throttled(event int64) (aside int) {
	one := s.events[event]
	if one == nil {
		if s.events == nil || len(s.events) >= maxLoners {
			s.events = make(map[int64]*loner)
		}
		one = &loner{answers: s.answers}
		s.events[event] = one
	}
	one.times++
	switch {
	case one.aside > 0:
	case s.answers > one.answers:
		if one.times < freeThrottles {
			return 0
		}
	default:
		one.blind++
		if one.blind < max(s.blind, blindThrottles) {
			return 0
		}
		one.blind, s.blind = 0, min(2*max(s.blind, blindThrottles), maxBlindThrottles)
	}
	one.aside++
	return one.aside
}

// expect notes that the event will be tried again in d.
func (s *loners) expect(now time.Time, event int64, d time.Duration) {
	if one := s.events[event]; one != nil {
		one.until = now.Add(d)
	}
}

// answered notes that the destination has answered n events.
func (s *loners) answered(n int) {
	if n > 0 {
		s.answers += uint64(n)
		s.blind = 0
	}
}

// forget drops what was answered.
func (s *loners) forget(event int64) { delete(s.events, event) }

// prune drops from time to time those that have not come back: somebody else has
// delivered them. It reports whether any is left.
func (s *loners) prune(now time.Time) bool {
	if now.Sub(s.pruned) < loneExpiry {
		return true
	}
	s.pruned = now
	for id, one := range s.events {
		if now.Sub(one.until) > loneExpiry {
			delete(s.events, id)
		}
	}
	return len(s.events) > 0
}
