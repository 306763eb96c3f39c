package dispatch

import (
	"math/rand/v2"
	"time"
)

// claimed takes what came of a query, before the work is handed out.
func (s *scheduler) claimed(q Query, c *Claimed, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.cond.Broadcast()
	if err != nil {
		s.failedLocked(q)
		return
	}
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
	case SourceDue:
		s.claimingDue = false
		s.dueNow = s.dueNow || len(c.Work) > 0 // there may be more
		if c.NextDue >= 0 {
			if at := time.Now().Add(c.NextDue); s.dueAt.IsZero() || at.Before(s.dueAt) {
				s.dueAt = at
			}
		}
	case SourceSweep:
		s.sweeping = false
		s.sweptLocked(q, c)
	}
}

// failedLocked remembers what has to be looked for again.
func (s *scheduler) failedLocked(q Query) {
	// Perhaps it was too much to read in time; claims that succeed correct this.
	s.eventBytes = min(4*max(s.eventBytes, 1<<10), s.cfg.Bytes)
	switch q.Source {
	case SourceDue:
		s.claimingDue = false
	case SourceSweep:
		s.sweeping = false
		if l := s.sweep.lane; l != nil {
			s.lag[l] = min(s.lag[l], q.After)
		}
		s.sweep.lane = nil
	case SourceIDs:
	}
	s.dueNow = true
	s.sweep.begin(sweepFull)
}

func (s *scheduler) sweptLocked(q Query, c *Claimed) {
	now := time.Now()
	last, full := q.After, c.Cut || len(c.Work) >= q.Limit
	if len(c.Work) > 0 {
		last = c.Work[len(c.Work)-1].Event.ID
		s.sweep.head = max(s.sweep.head, last)
	}
	if l := s.sweep.lane; l != nil {
		s.sweep.lane = nil
		if full {
			s.lag[l] = min(s.lag[l], last)
		} else if s.lag[l] == caughtUp {
			delete(s.lag, l)
			s.sweep.rewind(s.lagLow[l])
		}
		return
	}
	switch s.sweep.swept(now, q, c) {
	case bellSilence:
		s.bell.silence()
	case bellRing:
		s.bell.ring()
	case bellLeave:
	}
	s.swept = true
	s.readyLocked()
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

// passedOver takes word that a fresh event was given back because the lane had
// no room for it.
func (s *scheduler) passedOver(l *lane, id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	after, lags := s.lag[l]
	if !lags {
		s.lagLow[l] = s.sweep.low.low
	}
	if !lags || id <= after {
		s.lag[l] = id - 1
	}
	s.cond.Signal()
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
