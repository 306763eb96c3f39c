package webhook

import "sync"

const (
	// freeLosses is how often the destination may fail over an event before the
	// event is suspected, where others are answered.
	freeLosses = 3
	// blindLosses is the same where nothing else was answered. It lets the
	// others have a try: an event that brings its receiver down is otherwise
	// the one that the destination is probed with, for ever. By the pauses of
	// the dispatcher the others wait some two seconds. If they fail as well it
	// is an outage, and the next time it takes twice as many losses.
	blindLosses = 5
	// maxBlindLosses ends the doubling, after a few days.
	maxBlindLosses = 10_000
	// maxSuspects bounds what is remembered. Only events in flight at an outage
	// get here, so it is far more than there are.
	maxSuspects = 10_000
)

// suspects tells an outage from an event that its receiver cannot bear. Either
// way the connection is lost, or no answer comes, or the gateway in front answers
// 502; the difference is what becomes of other events. Without it, such an event
// would hold up all others for ever.
type suspects struct {
	mu      sync.Mutex
	answers uint64            // to any event
	lost    map[int64]*losses // by event
	blind   int               // losses that the next event takes; 0 is blindLosses
}

type losses struct {
	times   int
	blind   int    // of those, since an attempt was counted without proof
	answers uint64 // at the first of them
}

// lose notes that the destination failed over an event. It reports whether the event is
// suspected rather than the destination.
func (s *suspects) lose(event int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lost[event]
	if l == nil {
		if s.lost == nil || len(s.lost) >= maxSuspects {
			s.lost = make(map[int64]*losses)
		}
		l = &losses{answers: s.answers}
		s.lost[event] = l
	}
	l.times++
	if s.answers > l.answers {
		return l.times >= freeLosses
	}
	l.blind++
	if l.blind < max(s.blind, blindLosses) {
		return false
	}
	l.blind, s.blind = 0, min(2*max(s.blind, blindLosses), maxBlindLosses)
	return true
}

// answered notes that the destination was well when it got an event.
func (s *suspects) answered(event int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers++
	s.blind = 0
	delete(s.lost, event)
}
