package queue

import (
	"cmp"
	"slices"
	"time"

	"github.com/notifyd/notifyd/dispatch"
)

const (
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

// turns is what decides which sweep is next. The scheduler's lock guards it.
type turns struct {
	ranked  bool      // some lanes are more urgent than others
	lagNext bool      // the last sweep was the common one
	sweeps  uint64    // common ones in a backlog of what is more urgent
	lags    uint64    // sweeps of lanes that lag
	making  time.Time // until then the common sweep makes way for them
}

// isRanked reports whether some lanes go before others.
func isRanked(lanes []dispatch.Lane) bool {
	return slices.ContainsFunc(lanes, func(l dispatch.Lane) bool { return l.Priority() != lanes[0].Priority() })
}

// yieldLocked passes over what is less urgent than others, after a claim of the
// common sweep that was full, and up to which everything has been met.
func (s *scheduler) yieldLocked(c *Claimed, last int64) {
	if !s.turns.ranked {
		return
	}
	top := s.topLocked()
	for _, l := range s.lanes {
		if s.lagged[l] != nil || l.Priority() >= top || s.sharesLocked(l, c) {
			continue
		}
		s.lagLocked(l, last)
	}
}

// topLocked returns the highest priority among the lanes that the common sweep has
// something to look for. Where those are full or down, nobody has to make way.
func (s *scheduler) topLocked() int {
	top := dispatch.MinPriority
	for _, l := range s.lanes {
		if s.lagged[l] == nil && l.HasRoom() {
			top = max(top, l.Priority())
		}
	}
	return top
}

// sharesLocked reports whether much of the claim is for the lane and for a more
// urgent one.
func (s *scheduler) sharesLocked(l dispatch.Lane, c *Claimed) bool {
	shared := 0
	for i := range c.Work {
		lanes, _ := s.route.LanesOf(c.Work[i].Event.Type)
		if slices.Contains(lanes, l) && slices.ContainsFunc(lanes, func(o dispatch.Lane) bool { return o.Priority() > l.Priority() }) {
			shared++
		}
	}
	return shared*sharedPart >= len(c.Work)
}

// lagTurnLocked reports whether a lane that lags goes before the common sweep: in
// turns, unless the common sweep is in a backlog of what is more urgent.
func (s *scheduler) lagTurnLocked() bool {
	if !s.turns.ranked || !s.sweep.active {
		return true
	}
	s.turns.sweeps++
	return s.turns.sweeps%lesserTurn == 0
}

// makeWayLocked lets lanes that lag go before the common sweep for a moment.
func (s *scheduler) makeWayLocked(now time.Time, q *Query, full bool) { //nolint:revive // whether the claim was full decides
	if s.turns.ranked && !full && q.passes {
		s.turns.making = now.Add(min(waySize*now.Sub(q.asked), longestWay))
	}
}

// byPriorityLocked returns the lanes that lag: the most urgent first, among equals the
// one whose last turn is longest ago, and once in a while that one of all.
func (s *scheduler) byPriorityLocked() []dispatch.Lane {
	var lagging []dispatch.Lane
	for _, l := range s.lanes {
		if s.lagged[l] != nil {
			lagging = append(lagging, l)
		}
	}
	if len(lagging) < 2 {
		return lagging
	}
	fair := s.turns.lags%lesserTurn == lesserTurn-1
	slices.SortStableFunc(lagging, func(a, b dispatch.Lane) int {
		if d := b.Priority() - a.Priority(); d != 0 && !fair {
			return d
		}
		return cmp.Compare(s.lagged[a].served, s.lagged[b].served)
	})
	return lagging
}
