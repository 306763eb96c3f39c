package queue

import (
	"math"
	"slices"
	"time"

	"github.com/notifyd/notifyd/dispatch"
)

// lag is the position of a lane that was passed over: the lane has a sweep of its own until it has
// caught up with the common one. The scheduler's lock guards it.
type lag struct {
	after  int64  // its own sweep continues after this id
	given  int64  // the same, for events given back since that sweep began
	low    int64  // the low mark when the common sweep left the lane out
	served uint64 // the number of its last sweep, counted over all lanes
}

// back moves the lane's sweep back to the id.
func (g *lag) back(after int64) { g.after, g.given = min(g.after, after), min(g.given, after) }

// lagLocked makes the common sweep skip the lane, and the lane's own sweep start after the id.
func (s *scheduler) lagLocked(l dispatch.QueueLane, after int64) {
	g := s.lagged[l]
	if g == nil {
		g = &lag{after: math.MaxInt64, given: math.MaxInt64, low: s.sweep.low.low}
		s.lagged[l] = g
	}
	g.back(after)
}

// passedOver records the first events that lanes were offered and refused. It is called when that
// is known, and again when the rows are free: a sweep in between finds them locked.
func (s *scheduler) passedOver(first map[dispatch.QueueLane]int64) {
	if len(first) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for l, id := range first {
		s.lagLocked(l, id-1)
	}
	s.idle.wakeAll()
}

// skipLocked lists the event types whose lanes all lag.
func (s *scheduler) skipLocked() []string {
	if len(s.lagged) == 0 {
		return nil
	}
	return s.route.TypesOf(func(lanes []dispatch.QueueLane) bool {
		return !slices.ContainsFunc(lanes, func(l dispatch.QueueLane) bool { return s.lagged[l] == nil })
	})
}

// lagQueryLocked returns a sweep for a lane that lags and has room again.
func (s *scheduler) lagQueryLocked(now time.Time) (Query, bool) {
	for _, l := range s.byPriorityLocked() {
		room := min(l.Capacity(false), s.batchLocked())
		if room == 0 {
			continue
		}
		g := s.lagged[l]
		s.turns.lags++
		g.served, g.given = s.turns.lags, math.MaxInt64
		s.sweeping = true
		// Types that were never seen may be for this lane. Events beyond the common sweep are left
		// to the common sweep.
		others := s.route.TypesOf(func(lanes []dispatch.QueueLane) bool { return !slices.Contains(lanes, l) })
		q := Query{Source: SourceSweep, After: g.after, Limit: room, Bytes: s.limits.Bytes, Skip: others, lane: l, asked: now}
		q.Upto, q.step = s.span.upto(g.after, s.sweep.head)
		return q, true
	}
	return Query{}, false
}

// caughtUpLocked records the progress of a lane's own sweep. A sweep that found less than its limit
// has caught up, unless events were given back meanwhile. The marks then move back, so that the
// common sweep finds the lane's events again, and with them those that were committed behind the
// marks while their types were skipped.
func (s *scheduler) caughtUpLocked(q *Query, c *Claimed) {
	g := s.lagged[q.lane]
	if g == nil {
		return
	}
	if g.after < q.After {
		return // a full sweep began
	}
	g.after = g.given
	if n := len(c.Work); n > 0 && (c.Cut || n >= q.Limit) {
		g.after = min(g.after, c.Work[n-1].Event.ID)
	} else if q.step {
		g.after = min(g.after, q.Upto)
	}
	if g.after == math.MaxInt64 {
		delete(s.lagged, q.lane)
		s.sweep.rewind(g.low)
	}
}
