package dispatch

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// claimed takes what came of a query, in the order of ids, before the work is
// handed out. From now on others look at the work, and nobody may move it.
//
// The claim is to be handed out in its turn; see await.
func (s *scheduler) claimed(q *Query, c *Claimed, err error) (turn uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.cond.Broadcast()
	s.asks[q.Source].Count++
	if err != nil {
		s.asks[q.Source].Failed++
		if IsDown(err) {
			s.doubtSlotsLocked()
		}
		s.failedLocked(q)
		return 0
	}
	upto := int64(math.MaxInt64)
	if !s.awaitNamedLocked(q) {
		upto = beforeAll
	}
	defer s.namedLocked(q)
	s.judgeLocked(q, c, upto)
	s.disownLocked(c)
	if n := len(c.Work); n > 0 {
		s.claims++
		s.found += uint64(n)
		s.eventBytes = (3*s.eventBytes + c.Bytes/n) / 4
	}
	switch q.Source {
	case SourceIDs:
		for i := range c.Work {
			s.sweep.head = max(s.sweep.head, c.Work[i].Event.ID)
		}
		if n := len(c.Work); n > 0 {
			s.front.went(q.asked, c.Work, c.Work[n-1].Event.ID)
		}
	case SourceLines:
		s.claimingLines = false
	case SourceDue:
		s.claimingDue = false
		s.dueNow = s.dueNow || len(c.Work) > 0 // there may be more
		if c.NextDue >= 0 {
			if at := time.Now().Add(c.NextDue); s.dueAt.IsZero() || at.Before(s.dueAt) {
				s.dueAt = at
			}
		}
	case SourceSweep:
		// A lane's own sweep has ended when it is handed out: the next one has to
		// know by then whether that lane's types are to be skipped.
		s.sweeping = q.lane != nil
		s.sweptLocked(q, c)
	}
	turn = s.turns
	s.turns++
	s.open[turn] = openClaim{work: c.Work}
	return turn
}

// disownLocked gives back what was claimed for slots that others may have got
// before the claim was there: this process may have been frozen on the way.
func (s *scheduler) disownLocked(c *Claimed) {
	if !s.divided || !s.lapsed && !time.Now().After(s.slotsUntil) {
		return
	}
	s.lapsed = true
	for i := range c.Work {
		if w := &c.Work[i]; w.Event.AggregateID != "" {
			w.Withheld = true
		}
	}
}

// judgeLocked looks at what has come up behind a claim, which is known up to an id.
func (s *scheduler) judgeLocked(q *Query, c *Claimed, upto int64) {
	if q.Source != SourceSweep && q.Source != SourceIDs {
		return
	}
	if !q.Snap && q.Source == SourceIDs {
		s.withholdLocked(q, c, upto)
		return
	}
	f, doubt := &s.front, &s.doubt
	if q.lane != nil {
		g := s.lagOf(q.lane)
		f, doubt = &g.front, &g.doubt
	}
	if q.Source == SourceSweep {
		doubt.saw(c.Snapshot)
	}
	checked := q.checked
	if c.LateCut { // it has not looked further
		checked = min(checked, c.Late[len(c.Late)-1].ID)
	}
	if !f.saw(q.asked, c.Snapshot, checked, c.Late) {
		upto = beforeAll
	}
	s.withholdLocked(q, c, upto)
}

// awaitNamedLocked waits for claims by id that may have locked what comes
// before an event of this one. It returns false if one of them failed: what
// it had locked may be locked still.
func (s *scheduler) awaitNamedLocked(q *Query) (sure bool) {
	limit := s.naming
	switch q.Source {
	case SourceIDs:
		limit = q.naming
	case SourceDue, SourceLines:
		return true
	case SourceSweep:
	}
	lost := s.lostNamed
	for slices.ContainsFunc(s.namings, func(n uint64) bool { return n < limit }) {
		s.turnCond.Wait()
	}
	return lost == s.lostNamed
}

// namedLocked takes word that a claim by id has come back.
func (s *scheduler) namedLocked(q *Query) {
	if q.Source == SourceIDs {
		s.namings = slices.DeleteFunc(s.namings, func(n uint64) bool { return n == q.naming })
		s.turnCond.Broadcast()
	}
}

// await waits until a claim is to be handed out.
func (s *scheduler) await(turn uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.turn != turn {
		s.turnCond.Wait()
	}
}

// pass lets the next claim be handed out.
func (s *scheduler) pass() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn++
	s.turnCond.Broadcast()
}

// closed takes word that nothing of a claim is in memory any more.
func (s *scheduler) closed(turn uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, turn)
	s.turnCond.Broadcast()
}

// failedLocked remembers what has to be looked for again.
func (s *scheduler) failedLocked(q *Query) {
	// Perhaps it was too much to read in time; claims that succeed correct this.
	s.eventBytes = min(4*max(s.eventBytes, 1<<10), s.cfg.Bytes)
	switch q.Source {
	case SourceDue:
		s.claimingDue = false
	case SourceSweep:
		s.sweeping = false
		if q.lane != nil {
			q.lane.sweepEnded(q.After, q.After)
		}
	case SourceLines:
		s.claimingLines = false
		for i, ln := range q.lines {
			q.lanes[i].looked(ln, LineClaimed, 0)
		}
	case SourceIDs:
		s.lostNamed++
		s.namedLocked(q)
	}
	s.doubt.raise()
	for _, l := range s.laggingLocked() {
		s.lagOf(l).doubt.raise()
	}
	s.dueNow = true
	s.sweep.begin(sweepFull)
}

func (s *scheduler) sweptLocked(q *Query, c *Claimed) {
	now := time.Now()
	last, full := q.After, c.Cut || len(c.Work) >= q.Limit
	if len(c.Work) > 0 {
		last = c.Work[len(c.Work)-1].Event.ID
		s.sweep.head = max(s.sweep.head, last)
	}
	if q.lane != nil {
		s.sweep.count += len(c.Work) // what keeps an awake relay so
		return
	}
	if q.Reach && !full && c.Reach > last {
		// It has looked that far: lanes that lag may go there, and the next one
		// need not look at what is for them again.
		last = c.Reach
		s.sweep.head = max(s.sweep.head, last)
	}
	s.front.went(q.asked, c.Work, last)
	q.bound = s.front.head
	if len(c.Late) > 0 {
		q.bound = min(q.bound, c.Late[0].ID-1) // somebody has it locked
	}
	if full {
		s.yieldLocked(c, last)
	}
	q.knows = !full && len(c.Late) == 0 && (s.sweep.kind == sweepFull || s.knowing && s.sweep.kind == sweepLow)
	s.makeWayLocked(now, q, full)
	switch s.sweep.swept(now, *q, c) {
	case bellSilence:
		s.bell.silence()
	case bellRing:
		s.bell.ring()
	case bellLeave:
	}
	s.swept = true
	s.readyLocked()
}

// met takes word that the common sweep of q has been handed out. Only now may rows
// up to its end be looked at: of its events that go to the end of a line it is
// known that they are there, so that nobody takes a row which comes after them.
//
// A lane that lagged has not met what was passed over for it, and what lies beyond
// the front it will not meet in its own sweep. It may have rows there all the same,
// from before this relay began.
func (s *scheduler) met(q *Query) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bound = q.bound
	if !q.knows {
		return
	}
	if !s.knowing {
		s.knowing, s.unmet = true, make(map[*lane]bool)
		for _, l := range q.lagged {
			s.unmet[l] = true
		}
	}
	for l := range s.unmet {
		if !slices.Contains(q.lagged, l) {
			delete(s.unmet, l)
		}
	}
	s.cond.Broadcast()
}

// boundLocked returns the id up to which rows of the lane may be looked at.
func (s *scheduler) boundLocked(l *lane) int64 {
	if !s.knowing || s.unmet[l] {
		return s.bound
	}
	return inOrder
}

// bounds returns up to where each lane may begin with what is due and not decided yet:
// what comes before that may not have been met since it was put aside. nil stands for no
// bound. It is asked for when a claim is handed out.
func (s *scheduler) bounds() map[*lane]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.knowing && len(s.unmet) == 0 {
		return nil
	}
	bounds := make(map[*lane]int64, len(s.lanes))
	for _, l := range s.lanes {
		bounds[l] = s.boundLocked(l)
	}
	return bounds
}

// warmed takes word that a claimer has connected, or tried to.
func (s *scheduler) warmed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cold--
	s.readyLocked()
}

func (s *scheduler) readyLocked() {
	if s.swept && s.cold == 0 && !s.isReady {
		s.isReady = true
		close(s.ready)
	}
}

// rang takes the transaction id below which silent writers are.
func (s *scheduler) rang(xid uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep.rang(time.Now(), xid)
	s.cond.Broadcast()
}

// wakeUpLocked turns from ids to sweeping.
func (s *scheduler) wakeUpLocked() {
	s.ids = nil
	if s.sweep.wake() {
		s.bell.silence()
	}
}

// again takes word that rows of a claim are free again, as they were.
func (s *scheduler) again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dueNow = true
	s.sweep.begin(sweepFull)
	s.cond.Broadcast()
}

// armLocked sets the timer for whatever is to be done next. What is in flight
// needs none: its end is told to everybody, and a time that has passed while it
// is under way would let the others look again without a break.
func (s *scheduler) armLocked(now time.Time) {
	var at time.Time
	if !s.sweeping {
		at = s.sweep.next
		if s.sweep.awake() && s.sweep.restUntil.Before(at) {
			at = s.sweep.restUntil
		}
		if now.Before(s.making) && (s.sweep.due(now) || at.Before(s.making)) {
			at = s.making
		}
		for _, g := range s.lagged {
			if now.Before(g.rest) && g.rest.Before(at) {
				at = g.rest
			}
		}
	}
	if !s.claimingDue && !s.dueAt.IsZero() && (s.sweeping || s.dueAt.Before(at)) {
		at = s.dueAt
	}
	if at.IsZero() {
		s.wake.Stop()
		return
	}
	s.wake.Reset(max(0, at.Sub(now)))
}

// settledBelow returns the low mark: fresh events below it are rare.
func (s *scheduler) settledBelow() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sweep.low.low
}

// jittered spreads d over a tenth of it to both sides, so that relays which
// were started together do not poll together.
func jittered(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()-0.5)*0.2*float64(d)) //nolint:gosec // spreads load, hides nothing
}
