package health

import (
	"testing"
	"time"
)

// trial is a quarantine with a test clock.
type trial struct {
	*testing.T
	quarantine

	now time.Time
}

// loses has the destination fail over an event, with one call after the other.
func (s *trial) loses(event int64, want ...blame) {
	s.Helper()
	for i, w := range want {
		s.now = s.now.Add(time.Second)
		if got := s.lose(s.now, event, time.Time{}, false); got != w {
			s.Errorf("loss %d of event %d: blame %d, want %d", i+1, event, got, w)
		}
	}
}

func (s *trial) answers(event int64) {
	s.now = s.now.Add(time.Second)
	s.answered(time.Now(), event, "x", s.now, true)
}

// TestSuspectsInAnOutage: however long it takes, no event is to blame.
func TestSuspectsInAnOutage(t *testing.T) {
	t.Parallel()
	s := trial{T: t, now: time.Now()}
	s.answers(1) // before the outage: says nothing
	s.loses(7, blameDestination, blameAgain, blameAgain, blameAgain)
	s.loses(8, blameDestination, blameAgain)
	if got := s.lose(s.now, 8, s.now.Add(time.Hour), true); got != blameAgain {
		t.Errorf("an answer from before the outage counts against a probe: blame %d", got)
	}
	for id := int64(100); id < 100+2*maxQuarantine; id++ {
		s.lose(s.now, id, time.Time{}, false)
	}
	if len(s.events) > maxQuarantine {
		t.Errorf("%d events are remembered", len(s.events))
	}
}

// TestSuspectsAreProven by answers between their losses.
func TestSuspectsAreProven(t *testing.T) {
	t.Parallel()
	s := trial{T: t, now: time.Now()}
	s.loses(7, blameDestination, blameAgain)
	s.answers(10)
	s.loses(7, blameMaybe, blameAgain) // one answer is evidence for one loss
	s.answers(10)
	s.loses(7, blameEvent, blameStale) // a proven quarantine lasts where no other event comes
	if got := s.lose(s.now, 7, time.Time{}, true); got != blameAgain {
		t.Errorf("an outage counts against the event: blame %d", got)
	}
	s.answers(7)
	s.loses(7, blameDestination, blameAgain) // all is forgotten

	s.loses(30, blameDestination)
	s.now = s.now.Add(2 * time.Second)
	if got := s.lose(s.now, 30, s.now.Add(-time.Second), false); got != blameMaybe {
		t.Errorf("an answer to the same worker is not proof: blame %d", got)
	}
	s.answers(31)
	s.loses(30, blameEvent)
	s.counted(s.now, 30, 0, true)
	s.loses(30, blameDestination)
}

// TestSuspectsAndWhatWasUnderWay: an answer says nothing about a loss if its call began before the
// loss, however late the answer comes.
func TestSuspectsAndWhatWasUnderWay(t *testing.T) {
	t.Parallel()
	s := trial{T: t, now: time.Now()}
	began := s.now
	s.loses(20, blameDestination)
	s.answered(time.Now(), 21, "x", began, true)
	s.loses(20, blameAgain)
}

func TestSuspectsThrottled(t *testing.T) {
	t.Parallel()
	var s quarantine
	throttled := func(event int64, n int) (aside int) {
		for range n {
			aside = s.throttled(event)
		}
		return aside
	}
	if throttled(1, blindThrottles-1) != 0 || throttled(1, 1) != 1 || throttled(1, 3) != 4 {
		t.Error("no other event is answered: not put aside in time")
	}
	if throttled(2, 2*blindThrottles-1) != 0 || throttled(2, 1) != 1 {
		t.Error("the next one takes twice as many")
	}
	s.answered(time.Now(), 1, "x", time.Now(), true)
	if throttled(3, blindThrottles-1) != 0 || throttled(3, 1) != 1 {
		t.Error("an answer does not end the doubling")
	}
	throttled(4, 1)
	s.answered(time.Now(), 1, "x", time.Now(), true)
	if throttled(4, freeThrottles-2) != 0 || throttled(4, 1) != 1 {
		t.Error("others are answered: not put aside in time")
	}
	s.answered(time.Now(), 4, "x", time.Now(), true)
	if throttled(4, 1) != 0 {
		t.Error("an answered event is remembered")
	}
	now := time.Now()
	s.throttled(1)
	s.expect(now, 1, time.Hour)
	if !s.prune(now.Add(time.Hour)) || len(s.events) != 1 {
		t.Errorf("%d remembered, want the one that is expected", len(s.events))
	}
	if s.prune(now.Add(2 * time.Hour)) {
		t.Error("an event that does not return is remembered")
	}
	for i := range int64(3 * maxQuarantine) {
		s.throttled(i)
	}
	if len(s.events) > maxQuarantine {
		t.Errorf("%d remembered", len(s.events))
	}
}
