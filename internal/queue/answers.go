package queue

import (
	"math/rand/v2"
	"time"

	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

// claimed records the result of a query, in the order of ids, before the work is handed out.
func (s *scheduler) claimed(q *Query, c *Claimed, err error) (anew *restart) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.idle.wakeAll()
	s.tally.asked(q.Source, err != nil)
	if err != nil {
		s.failedLocked(q, err)
		return nil
	}
	if n := len(c.Work); n > 0 {
		s.tally.claimed(n)
		s.eventBytes = (3*s.eventBytes + c.Bytes/n) / 4
	}
	if q.Source != SourceDue {
		s.relay.Saw(len(c.Work), c.Cut || q.Source == SourceSweep && len(c.Work) >= q.Limit, q.Source == SourceIDs)
	}
	switch q.Source {
	case SourceIDs:
		for i := range c.Work {
			s.sweep.head = max(s.sweep.head, c.Work[i].Event.ID)
			s.sweep.doubts.behind = s.sweep.doubts.behind || c.Work[i].Event.ID <= s.sweep.near.low
		}
	case SourceDue:
		s.due.claiming = false
		behind := s.due.since.claimed(time.Now(), q, c)
		s.due.now = s.due.now || len(c.Work) > 0 || behind // there may be more
		if c.NextDue >= 0 {
			if at := time.Now().Add(c.NextDue); s.due.at.IsZero() || at.Before(s.due.at) {
				s.due.at = at
			}
		}
	case SourceSweep:
		s.sweeping = false
		anew = s.sweptLocked(q, c)
	}
	return anew
}

// failedLocked schedules another search for what the failed query looked for. After a lost
// connection the full sweep finds whatever was locked. A query that took too long is repeated with
// a smaller bound, and starts nothing that takes longer still.
func (s *scheduler) failedLocked(q *Query, err error) {
	// Perhaps the payloads were too much to read in time; successful claims correct this.
	s.eventBytes = min(4*max(s.eventBytes, 1<<10), s.limits.Bytes)
	switch q.Source {
	case SourceDue:
		s.due.claiming = false
	case SourceSweep:
		s.sweeping = false
		if store.IsCanceled(err) {
			s.span.canceled()
		}
		if q.lane != nil {
			s.lagLocked(q.lane, q.After)
		}
	case SourceIDs: // a sweep finds them
	}
	s.due.now = true
	switch {
	case store.IsDown(err):
		s.sweep.begin(sweepFull)
	case q.Source == SourceIDs:
		s.sweep.begin(sweepLow)
	}
}

func (s *scheduler) sweptLocked(q *Query, c *Claimed) *restart {
	now := time.Now()
	last, full := q.After, c.Cut || len(c.Work) >= q.Limit
	if s.span.ids > 0 {
		s.span.took(q, now.Sub(q.asked), c.LastID)
	}
	if len(c.Work) > 0 {
		last = c.Work[len(c.Work)-1].Event.ID
		s.sweep.head = max(s.sweep.head, last)
	}
	if q.lane != nil {
		s.caughtUpLocked(q, c)
		return nil
	}
	if q.Reach && !full && !q.step && c.Reach > last {
		// The claim has read that far: the next one need not read the events of lagging lanes
		// again.
		s.sweep.head = max(s.sweep.head, c.Reach)
	}
	if full {
		s.yieldLocked(c, last)
	}
	s.makeWayLocked(now, q, full)
	s.behindLocked(full)
	s.sweep.swept(now, *q, c)
	s.swept = true
	s.readyLocked()
	anew := s.sweep.restarted(q, c)
	if anew != nil {
		for _, g := range s.lagged {
			g.back(beforeAll)
			g.low = min(g.low, s.sweep.low.low)
		}
	}
	return anew
}

// warmed records that a claimer has connected, or has tried to.
func (s *scheduler) warmed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cold--
	s.readyLocked()
}

func (s *scheduler) readyLocked() {
	if s.swept && s.cold == 0 {
		s.cold = -1 // once
		close(s.ready)
	}
}

// behindLocked tells the relay whether there is more to claim.
func (s *scheduler) behindLocked(is bool) {
	switch {
	case is && !s.behind:
		s.relay.Behind(1)
	case !is && s.behind:
		s.relay.Behind(-1)
	}
	s.behind = is
}

// again records that rows of a claim are free again, unchanged.
func (s *scheduler) again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due.now = true
	s.sweep.begin(sweepFull)
	s.idle.wakeAll()
}

// armLocked sets the timer for the next thing that is due. A query in flight needs no timer: its
// end wakes every claimer. A timer for a time that passes meanwhile would make the idle claimers
// check again and again.
func (s *scheduler) armLocked(now time.Time) {
	var at time.Time
	if !s.sweeping {
		at = s.sweep.next
		if s.sweep.polling && s.sweep.restUntil.Before(at) {
			at = s.sweep.restUntil
		}
		if now.Before(s.turns.wayUntil) && (s.sweep.due(now) || at.Before(s.turns.wayUntil)) {
			at = s.turns.wayUntil
		}
	}
	if !s.due.claiming && !s.due.at.IsZero() && (s.sweeping || s.due.at.Before(at)) {
		at = s.due.at
	}
	if at.IsZero() {
		s.timer.Stop()
		return
	}
	s.timer.Reset(max(0, at.Sub(now)))
}

// settledBelow returns the low mark: fresh events below it are rare.
func (s *scheduler) settledBelow() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sweep.low.low
}

// jittered varies d by up to 5 % either way, so that relays that were started together do not poll
// together.
func jittered(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()-0.5)*0.2*float64(d)) //nolint:gosec // spreads load, hides nothing
}

// stats adds the figures of claims.
func (s *scheduler) stats(to *observe.Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tally.stats(to)
	to.Bell = s.relay.State().String()
}
