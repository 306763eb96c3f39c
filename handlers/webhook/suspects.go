package webhook

import (
	"sync"
	"sync/atomic"
)

const (
	// freeLosses is how often the destination may fail over an event before that is the
	// event's fault, where others are answered in between.
	freeLosses = 2
	// blindLosses is how often it may fail over an event that is not suspected yet,
	// where nothing else is answered. Then the others have a try: an event
	// that brings its receiver down is otherwise the one that the destination is
	// probed with, for ever. By the pauses of the dispatcher the others wait some two
	// seconds. If they fail as well it is an outage, and for the next event it takes
	// twice as many losses.
	blindLosses = 5
	// maxBlindLosses ends the doubling, after a few days.
	maxBlindLosses = 10_000
	// maxSuspects bounds what is remembered. Only events in flight at an outage
	// get here, so it is far more than there are.
	maxSuspects = 10_000
)

// suspicion is what is held against an event that the destination has failed over.
type suspicion uint8

const (
	unsuspected suspicion = iota // it is an outage
	maybe                        // it is an outage, or the event: let others have a try
	proven                       // others are answered and this one is not
)

// suspects tells an outage from an event that its receiver cannot bear. Either
// way the connection is lost, or no answer comes, or the gateway in front answers
// 502; the difference is what becomes of other events. Without it, such an event
// would hold up all others for ever.
type suspects struct {
	losses atomic.Uint64 // of any event

	mu    sync.Mutex
	proof uint64            // a request was answered that began after so many losses
	lost  map[int64]*losses // by event
	blind int               // losses that the next event takes; 0 is blindLosses
}

// losses are those of one event since it was last answered.
type losses struct {
	last    uint64 // the number of the last one, among those of all events
	blind   int    // with nothing answered since the one before
	others  int    // with another event answered since the one before
	suspect bool   // once suspected, it is so with each further one
}

// begin returns the time, in losses. A request that begins says it when it is answered:
// what was under way already when another was lost says nothing about that.
func (s *suspects) begin() uint64 { return s.losses.Load() }

// lose notes that the destination failed over an event, and tells whose fault that is.
func (s *suspects) lose(event int64) suspicion {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lost[event]
	if l == nil {
		if s.lost == nil || len(s.lost) >= maxSuspects {
			s.lost = make(map[int64]*losses)
		}
		l = &losses{}
		s.lost[event] = l
	}
	since := l.last
	l.last = s.losses.Add(1)
	if since > 0 && s.proof >= since {
		if l.others++; l.others >= freeLosses {
			l.suspect = true
			return proven
		}
	} else {
		l.blind++
	}
	switch {
	case l.suspect:
	case l.blind < max(s.blind, blindLosses):
		return unsuspected
	default:
		l.suspect, s.blind = true, min(2*max(s.blind, blindLosses), maxBlindLosses)
	}
	return maybe
}

// answered notes that the destination was well when it got an event, with a request
// that began at the given time.
func (s *suspects) answered(event int64, began uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proof = max(s.proof, began)
	s.blind = 0
	delete(s.lost, event)
}
