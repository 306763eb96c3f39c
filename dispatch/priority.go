package dispatch

import (
	"slices"
	"time"
)

const (
	// MinPriority is the lowest priority of a destination.
	MinPriority = -100
	// MaxPriority is the highest one.
	MaxPriority = 100
	// lesserTurn is which of the sweeps, counted, goes to those whose turn it would
	// not be by priority, so that nobody waits for ever.
	lesserTurn = 8
	// sharedPart is the part of a claim, one of so many, from which on a destination
	// does not make way: what it shares with a more urgent one would have to be
	// written down for it, event by event.
	sharedPart = 8
	// waySize is how many times as long as it took the common sweep then makes way
	// for those that lag, if it has found that nothing more urgent is there. Beside a
	// backlog that it only has to pass, it takes long at first. longestWay bounds
	// this, and with it how long what is urgent waits to be found.
	waySize    = 4
	longestWay = 20 * time.Millisecond
)

// Priorities use what is there for destinations without room. While there is a
// backlog, those of lower priority are passed over by the common sweep, which so
// comes to the events of the others at once, and catch up by sweeps of their own.
// That keeps all orders, because it is how a destination that was full is treated.

// isRanked reports whether some lanes go before others.
func isRanked(lanes []*lane) bool {
	return slices.ContainsFunc(lanes, func(l *lane) bool { return l.cfg.Priority != lanes[0].cfg.Priority })
}

// serve gives the scheduler its lanes, before anything is claimed.
func (s *scheduler) serve(lanes []*lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lanes, s.ranked = lanes, isRanked(lanes)
}

// yieldLocked passes over what is less urgent than others, after a claim of the
// common sweep that was full, and up to which everything has been met.
func (s *scheduler) yieldLocked(c *Claimed, last int64) {
	if !s.ranked {
		return
	}
	top := s.topLocked()
	for _, l := range s.lanes {
		if _, lags, _ := l.lagging(); lags || l.cfg.Priority >= top || s.sharesLocked(l, c) {
			continue
		}
		l.lag(last)
		s.lagOf(l)
	}
}

// topLocked returns the highest priority among the lanes that the common sweep has
// something to look for. Where those are full or down, nobody has to make way.
func (s *scheduler) topLocked() int {
	top := MinPriority
	for _, l := range s.lanes {
		if _, lags, _ := l.lagging(); !lags && l.hasRoom() {
			top = max(top, l.cfg.Priority)
		}
	}
	return top
}

// sharesLocked reports whether much of the claim is for the lane and for a more
// urgent one.
func (s *scheduler) sharesLocked(l *lane, c *Claimed) bool {
	shared := 0
	for i := range c.Work {
		lanes := s.route.find(c.Work[i].Event.Type)
		if slices.Contains(lanes, l) && slices.ContainsFunc(lanes, func(o *lane) bool { return o.cfg.Priority > l.cfg.Priority }) {
			shared++
		}
	}
	return shared*sharedPart >= len(c.Work)
}

func (l *lane) hasRoom() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.roomLocked(time.Now()) > 0
}

// lagTurnLocked reports whether a lane that lags goes before the common sweep: in
// turns, unless the common sweep is in a backlog of what is more urgent.
func (s *scheduler) lagTurnLocked() bool {
	if !s.ranked || !s.sweep.active {
		return true
	}
	s.sweeps++
	return s.sweeps%lesserTurn == 0
}

// makeWayLocked lets lanes that lag go before the common sweep for a moment.
func (s *scheduler) makeWayLocked(now time.Time, q *Query, full bool) { //nolint:revive // whether the claim was full decides
	if s.ranked && !full && len(q.lagged) > 0 {
		s.making = now.Add(min(waySize*now.Sub(q.asked), longestWay))
	}
}

// byPriorityLocked sorts lanes that lag: the most urgent first, among equals the
// one whose last turn is longest ago, and once in a while that one of all.
func (s *scheduler) byPriorityLocked(lagging []*lane) {
	if len(lagging) < 2 {
		return
	}
	fair := s.lagSweeps%lesserTurn == lesserTurn-1
	slices.SortStableFunc(lagging, func(a, b *lane) int {
		if d := b.cfg.Priority - a.cfg.Priority; d != 0 && !fair {
			return d
		}
		return int(s.lagged[a].served) - int(s.lagged[b].served) //nolint:gosec // counts of sweeps
	})
}
