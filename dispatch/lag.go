package dispatch

import (
	"math"
	"slices"
	"time"
)

// lag is what is known of a lane that was passed over: it has a sweep of its
// own until that has caught up with the common one.
type lag struct {
	low   int64 // the low mark when the common sweep left the lane out
	front front
	doubt doubt     // what is locked may come before what is not: look at everything
	rest  time.Time // do not sweep before
	// served is the number of its last sweep among those of all lanes.
	served uint64
}

// doubtPause is between the sweeps of a lane that waits for somebody to unlock
// an event.
const doubtPause = 20 * time.Millisecond

// laggingLocked returns the lanes that lag behind.
func (s *scheduler) laggingLocked() []*lane {
	var all []*lane
	for _, l := range s.lanes {
		if _, lags, _ := l.lagging(); lags {
			s.lagOf(l)
			all = append(all, l)
		}
	}
	return all
}

// lagOf returns the state of a lane that lags behind.
func (s *scheduler) lagOf(l *lane) *lag {
	g := s.lagged[l]
	if g == nil {
		g = &lag{low: s.sweep.low.low, front: front{head: s.front.head, gaps: slices.Clone(s.front.gaps)}, doubt: s.doubt}
		s.lagged[l] = g
	}
	return g
}

// skipLocked lists the event types all of whose lanes lag behind.
func (s *scheduler) skipLocked(lagging []*lane) []string {
	if len(lagging) == 0 {
		return nil
	}
	return s.route.types(func(lanes []*lane) bool {
		return !slices.ContainsFunc(lanes, func(l *lane) bool { return !slices.Contains(lagging, l) })
	})
}

// lagQueryLocked sweeps for a lane that was passed over and has room again.
func (s *scheduler) lagQueryLocked(now time.Time) (Query, bool) {
	lagging := s.laggingLocked()
	s.byPriorityLocked(lagging)
	for _, l := range lagging {
		after, _, ready := l.lagging()
		g := s.lagged[l]
		if !ready || now.Before(g.rest) {
			continue
		}
		room := min(l.roomy(), s.batchLocked())
		if room == 0 {
			continue
		}
		// Types that have not been met yet may be for this lane. Beyond the front
		// of the common sweep are events for other lanes that have yet to get
		// what comes before.
		others := s.route.types(func(lanes []*lane) bool { return !slices.Contains(lanes, l) })
		if !l.sweepBegins(after) {
			continue // something has been given back since we asked; we are told when it is free
		}
		s.lagSweeps++
		g.served = s.lagSweeps
		g.front.back(after)
		g.front.reach(now, after)
		q := Query{
			Source: SourceSweep, After: after, Upto: s.front.head, Limit: room, Bytes: s.cfg.Bytes, Skip: others,
			lane: l, asked: now,
		}
		s.askLocked(&q, &g.front, &g.doubt)
		return q, true
	}
	return Query{}, false
}

// askLocked has a sweep look into the gaps behind it, or, in doubt, at
// everything that it may meet.
func (s *scheduler) askLocked(q *Query, f *front, d *doubt) {
	q.Gaps, q.Look, q.checked = f.asks(q.After), s.cfg.Batch, q.After
	if d.raised {
		from := q.After
		if from < math.MaxInt64 {
			from++
		}
		// Not beyond what it goes to: what comes there would pass for locked.
		if from <= q.Upto {
			q.Gaps = append(q.Gaps, Range{from, q.Upto})
			q.Look += 2 * q.Limit
		}
	}
}

// caughtUp takes word of how far the own sweep of a lane has come. It is called
// in the order in which claims are handed out.
func (s *scheduler) caughtUp(q *Query, c *Claimed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweeping = false
	l := q.lane
	to := q.Upto
	switch full := c.Cut || len(c.Work) >= q.Limit; {
	case full && len(c.Work) > 0:
		to = c.Work[len(c.Work)-1].Event.ID
	case s.front.head == q.Upto:
		to = inOrder
	}
	g := s.lagged[l]
	if len(c.Late) > 0 && c.Late[0].ID <= to {
		to = c.Late[0].ID - 1 // somebody has it locked
		if g != nil && g.doubt.raised {
			g.rest = time.Now().Add(doubtPause)
		}
	}
	done := l.sweepEnded(q.After, to)
	defer s.cond.Broadcast()
	if g == nil {
		return
	}
	if !done {
		if to != inOrder {
			g.front.went(q.asked, c.Work, to)
		}
		return
	}
	g.front.went(q.asked, c.Work, q.Upto)
	s.front.merge(&g.front)
	delete(s.lagged, l)
	s.sweep.rewind(g.low)
}

// lost takes word that a settlement was lost, and the first event that each
// lane had of it. They may be locked for a while yet.
func (s *scheduler) lost(first map[*lane]int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if IsDown(err) {
		s.doubtSlotsLocked()
	}
	s.doubt.raise()
	for l, id := range first {
		l.lag(id - 1)
		s.lagOf(l).doubt.raise()
	}
}

// regainLocked begins from the beginning: nothing is taken for met any more.
func (s *scheduler) regainLocked() {
	s.front.reset(beforeAll)
	s.knowing, s.bound = false, beforeAll
	s.sweep.forget()
	s.doubt.raise()
	s.sweep.begin(sweepFull)
}

// withholdLocked finds events of a claim that have to be given back, because an
// earlier one of their aggregate has come up that is not with anybody yet.
// Up to sure, what is not reported as late is not there.
func (s *scheduler) withholdLocked(q *Query, c *Claimed, sure int64) {
	if c.LateCut {
		sure = min(sure, c.Late[len(c.Late)-1].ID)
	}
	late := s.unmetLocked(c)
	if len(late) == 0 && sure == math.MaxInt64 {
		return
	}
	first := make(map[string]int64, len(late))
	var key []byte
	for _, x := range late {
		key = appendKey(key[:0], &Event{AggregateType: x.AggregateType, AggregateID: x.AggregateID})
		if len(key) == 0 {
			continue
		}
		if _, met := first[string(key)]; !met {
			first[string(key)] = x.ID
		}
	}
	for i := range c.Work {
		w := &c.Work[i]
		if key = appendKey(key[:0], &w.Event); !w.Fresh || len(key) == 0 {
			continue
		}
		earlier, met := first[string(key)]
		if met = met && earlier < w.Event.ID; !met && w.Event.ID <= sure {
			continue
		}
		w.Withheld = true
		if !met {
			earlier = w.Event.ID
		}
		lanes, _ := s.route.route(w.Event.Type)
		for _, l := range lanes {
			l.lag(earlier - 1)
			s.lagOf(l).doubt.raise()
		}
	}
	s.nameLocked(q.asked, late)
}

// unmetLocked returns the late events of a claim that nobody has.
func (s *scheduler) unmetLocked(c *Claimed) []Late {
	if len(c.Late) == 0 {
		return nil
	}
	held := make(map[int64]bool)
	for _, claim := range s.open {
		for i := range claim.work {
			held[claim.work[i].Event.ID] = true
		}
	}
	for i := range c.Work {
		held[c.Work[i].Event.ID] = true
	}
	c.Late = slices.DeleteFunc(c.Late, func(x Late) bool { return held[x.ID] })
	return c.Late
}

// nameLocked has late events claimed at once, unless that was tried just now.
func (s *scheduler) nameLocked(now time.Time, late []Late) {
	if len(late) == 0 || now.Sub(s.named) < doubtPause || s.sweep.awake() || !s.knowing {
		return
	}
	s.named = now
	for _, x := range late {
		s.ids = append(s.ids, x.ID)
	}
}
