package queue

import (
	"math"
	"slices"
	"time"

	"github.com/notifyd/notifyd/dispatch"
)

// lag is where a lane stands that was passed over: it has a sweep of its own
// until that has caught up with the common one. The scheduler's lock guards it.
type lag struct {
	after  int64  // its own sweep looks for what is behind this id
	given  int64  // the same, for what was given back since that sweep began
	low    int64  // the low mark when the common sweep left the lane out
	served uint64 // the number of its last sweep among those of all lanes
}

// back makes the lane look again behind the id.
func (g *lag) back(after int64) { g.after, g.given = min(g.after, after), min(g.given, after) }

// lagLocked has the common sweep leave the lane out, whose own looks behind the id.
func (s *scheduler) lagLocked(l dispatch.Lane, after int64) {
	g := s.lagged[l]
	if g == nil {
		g = &lag{after: math.MaxInt64, given: math.MaxInt64, low: s.sweep.low.low}
		s.lagged[l] = g
	}
	g.back(after)
}

// passedOver reports the first events that lanes were offered and did not take. It is
// called when that is known, and again when their rows are free: a sweep in between
// finds them locked.
func (s *scheduler) passedOver(first map[dispatch.Lane]int64) {
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

// skipLocked lists the event types all of whose lanes lag behind.
func (s *scheduler) skipLocked() []string {
	if len(s.lagged) == 0 {
		return nil
	}
	return s.route.TypesOf(func(lanes []dispatch.Lane) bool {
		return !slices.ContainsFunc(lanes, func(l dispatch.Lane) bool { return s.lagged[l] == nil })
	})
}

// lagQueryLocked sweeps for a lane that was passed over and has room again.
func (s *scheduler) lagQueryLocked(now time.Time) (Query, bool) {
	for _, l := range s.byPriorityLocked() {
		room := min(l.Roomy(), s.batchLocked())
		if room == 0 {
			continue
		}
		g := s.lagged[l]
		s.turns.lags++
		g.served, g.given = s.turns.lags, math.MaxInt64
		s.sweeping = true
		// Types that have not been met yet may be for this lane. What comes behind the
		// common sweep is left to that.
		others := s.route.TypesOf(func(lanes []dispatch.Lane) bool { return !slices.Contains(lanes, l) })
		return Query{Source: SourceSweep, After: g.after, Upto: s.sweep.head, Limit: room, Bytes: s.limits.Bytes, Skip: others, lane: &l, asked: now}, true
	}
	return Query{}, false
}

// caughtUpLocked takes how far the own sweep of a lane has come. One that found less than
// it asked for has caught up, unless something was given back meanwhile: then the common
// sweep looks for the lane's events again, and for those, too, that were committed
// behind the marks while it skipped them.
func (s *scheduler) caughtUpLocked(q *Query, c *Claimed) {
	g := s.lagged[*q.lane]
	if g == nil {
		return
	}
	if g.after < q.After {
		return // a full sweep began
	}
	g.after = g.given
	if n := len(c.Work); n > 0 && (c.Cut || n >= q.Limit) {
		g.after = min(g.after, c.Work[n-1].Event.ID)
	}
	if g.after == math.MaxInt64 {
		delete(s.lagged, *q.lane)
		s.sweep.rewind(g.low)
	}
}
