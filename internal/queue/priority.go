package queue

import (
	"cmp"
	"slices"
	"time"

	"github.com/notifyd/notifyd/dispatch"
)

const (
	// lesserTurn is how often, one sweep in so many, a lane of lower priority gets the turn, so
	// that no lane waits for ever.
	lesserTurn = 8
	// sharedPart is the part of a claim, as a fraction 1/sharedPart, from which on a destination is
	// not passed over: each event that it shares with a more urgent destination would need a
	// row of its own.
	sharedPart = 8
	// waySize is how long the common sweep makes way for lagging lanes after it has found nothing
	// more urgent, in multiples of the time that this took. Next to a backlog that it only has to
	// pass, the first such sweep takes long. longestWay bounds the pause, and with it the time until
	// an urgent event is found.
	waySize    = 4
	longestWay = 20 * time.Millisecond
)

// Priorities use the mechanism for destinations without room. During a backlog, the common sweep
// passes over the lanes of lower priority, and so reaches the events of the others at once. The
// passed lanes catch up by sweeps of their own.

// turns decides which sweep is next. The scheduler's lock guards it.
type turns struct {
	ranked   bool      // lanes have different priorities
	lagNext  bool      // the last sweep was the common one
	sweeps   uint64    // common sweeps during a backlog of more urgent events
	lags     uint64    // sweeps of lagging lanes
	wayUntil time.Time // until then the common sweep makes way for lagging lanes
}

// isRanked reports whether the lanes have different priorities.
func isRanked(lanes []dispatch.QueueLane) bool {
	return slices.ContainsFunc(lanes, func(l dispatch.QueueLane) bool { return l.Destination().Priority != lanes[0].Destination().Priority })
}

// yieldLocked passes over the less urgent lanes after a full claim of the common sweep, which has
// read everything up to last.
func (s *scheduler) yieldLocked(c *Claimed, last int64) {
	if !s.turns.ranked {
		return
	}
	top := topPriority(s.lanes, s.lagged)
	for _, l := range s.lanes {
		if s.lagged[l] != nil || l.Destination().Priority >= top || s.sharesLocked(l, c) {
			continue
		}
		s.lagLocked(l, last)
	}
}

// topPriority returns the highest priority among the lanes that the common sweep can serve. Lanes
// that are full or down do not make others wait.
func topPriority(lanes []dispatch.QueueLane, lagged map[dispatch.QueueLane]*lag) int {
	top := dispatch.MinPriority
	for _, l := range lanes {
		if lagged[l] == nil && l.HasCapacity() {
			top = max(top, l.Destination().Priority)
		}
	}
	return top
}

// sharesLocked reports whether much of the claim is for both the lane and a more urgent one.
func (s *scheduler) sharesLocked(l dispatch.QueueLane, c *Claimed) bool {
	shared := 0
	for i := range c.Work {
		lanes, _ := s.route.LanesOf(c.Work[i].Event.Type)
		if slices.Contains(lanes, l) && slices.ContainsFunc(lanes, func(o dispatch.QueueLane) bool { return o.Destination().Priority > l.Destination().Priority }) {
			shared++
		}
	}
	return shared*sharedPart >= len(c.Work)
}

// lagTurnLocked reports whether a lagging lane goes before the common sweep: in turns, unless the
// common sweep is in a backlog of more urgent events.
func (s *scheduler) lagTurnLocked() bool {
	if !s.turns.ranked || !s.sweep.active {
		return true
	}
	s.turns.sweeps++
	return s.turns.sweeps%lesserTurn == 0
}

// makeWayLocked lets lagging lanes go before the common sweep for a moment.
func (s *scheduler) makeWayLocked(now time.Time, q *Query, full bool) {
	if s.turns.ranked && !full && q.passes {
		s.turns.wayUntil = now.Add(min(waySize*now.Sub(q.asked), longestWay))
	}
}

// byPriorityLocked returns the lagging lanes, the most urgent first. Among equals the lane that was
// swept longest ago comes first; once in lesserTurn sweeps, it comes before all others.
func (s *scheduler) byPriorityLocked() []dispatch.QueueLane {
	var lagging []dispatch.QueueLane
	for _, l := range s.lanes {
		if s.lagged[l] != nil {
			lagging = append(lagging, l)
		}
	}
	if len(lagging) < 2 {
		return lagging
	}
	fair := s.turns.lags%lesserTurn == lesserTurn-1
	slices.SortStableFunc(lagging, func(a, b dispatch.QueueLane) int {
		if d := b.Destination().Priority - a.Destination().Priority; d != 0 && !fair {
			return d
		}
		return cmp.Compare(s.lagged[a].served, s.lagged[b].served)
	})
	return lagging
}
