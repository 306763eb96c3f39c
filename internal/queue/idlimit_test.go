package queue

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/sleep"
)

// canceled is the answer to a statement that took longer than the statement_timeout.
func canceled() error { return &pgconn.PgError{Code: "57014", SeverityUnlocalized: "ERROR"} }

// TestSweepAfterATimeoutTakesSteps: a sweep that took too long is not repeated as it was, and not
// followed by one that takes longer. The next ones pass a bounded number of ids each, and all of
// them together everything. A full sweep lets others go first between its steps.
func TestSweepAfterATimeoutTakesSteps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := newTestScheduler(t)
		const last = 5 << 20 // ids, all of them done and not vacuumed
		s.sweepAll()
		q := s.pick(t) // due deliveries, or the sweep
		if q.Source == SourceDue {
			s.claimed(&q, &Claimed{NextDue: -1}, nil)
			q = s.pick(t)
		}
		if q.Source != SourceSweep || q.After != beforeAll || q.step {
			t.Fatalf("%v", q)
		}
		s.claimed(&q, &Claimed{}, canceled())
		covered, others, steps := int64(math.MinInt64), 0, 0
		for begin := time.Now(); covered < math.MaxInt64; sleep.For(t.Context(), 10*time.Millisecond) {
			if time.Since(begin) > 10*time.Minute {
				t.Fatalf("%d of %d ids are covered after %d steps", covered, last, steps)
			}
			s.mu.Lock()
			q, ok := s.pickLocked(time.Now())
			s.mu.Unlock()
			if !ok {
				continue
			}
			id := int64(last)
			c := &Claimed{NextDue: -1, Snapshot: Snapshot{Xmin: 1, Xmax: 1}, LastID: &id}
			switch {
			case q.Source != SourceSweep:
			case q.After == covered && s.sweep.kind == sweepFull:
				if passed := min(q.Upto, last) - max(q.After, 0); passed > firstIDLimit {
					t.Fatalf("%v passes %d ids", q, passed)
				}
				if !q.OpenWriters {
					t.Fatalf("%v does not ask for the last id", q)
				}
				covered, steps = q.Upto, steps+1
				sleep.For(t.Context(), 500*time.Millisecond)
			default:
				others++
				if q.step {
					sleep.For(t.Context(), 500*time.Millisecond)
				}
			}
			s.claimed(&q, c, nil)
		}
		if steps != 6 || others < steps-1 {
			t.Errorf("%d steps, and %d other sweeps between them", steps, others)
		}
	})
}

// TestSweepStepsGetSmaller down to a bound, as long as the server cancels them, and larger again.
func TestSweepStepsGetSmaller(t *testing.T) {
	t.Parallel()
	var s idLimit
	if upto, step := s.upto(5, 100); upto != 100 || step {
		t.Errorf("%d %t without a timeout", upto, step)
	}
	for range 50 {
		s.canceled()
	}
	if upto, step := s.upto(5, math.MaxInt64); upto != 5+leastIDLimit || !step {
		t.Errorf("%d %t after timeouts", upto, step)
	}
	if upto, step := s.upto(beforeAll, math.MaxInt64); upto != leastIDLimit || !step {
		t.Errorf("%d %t from the beginning", upto, step)
	}
	bounded, last := &Query{step: true, OpenWriters: true}, int64(1000)
	for range 100 {
		s.took(bounded, time.Millisecond, &last)
	}
	if upto, step := s.upto(5, math.MaxInt64); upto < 1<<60 || !step {
		t.Errorf("%d %t after quick sweeps", upto, step)
	}
	if upto, step := s.upto(1000, math.MaxInt64); upto != math.MaxInt64 || step {
		t.Errorf("%d %t behind the last id", upto, step)
	}
	s.canceled()
	if upto, _ := s.upto(0, math.MaxInt64); upto != firstIDLimit {
		t.Errorf("%d after another timeout", upto)
	}
	s.took(&Query{}, time.Millisecond, nil) // it was asked before
	s.took(bounded, 2*time.Second, &last)
	if upto, _ := s.upto(0, math.MaxInt64); upto != firstIDLimit/2 {
		t.Errorf("%d after a slow sweep", upto)
	}
	s.took(bounded, time.Second, nil)
	if upto, step := s.upto(0, math.MaxInt64); upto != math.MaxInt64 || step {
		t.Errorf("%d %t where the sequence cannot be read", upto, step)
	}
}

// TestSchedulerTakesTurnsBetweenDueAndSweeps: with a single claimer, and deliveries of one
// destination due without end, every other query is a sweep.
func TestSchedulerTakesTurnsBetweenDueAndSweeps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := newTestScheduler(t)
		s.dueNow()
		sweeps, due := 0, 0
		for range 100 {
			s.sweepAll() // there is something to sweep
			q := s.pick(t)
			c := sweptIDs(1, 100)
			c.NextDue = -1
			if q.Source == SourceDue {
				due++
			} else {
				sweeps++
				c.Work = c.Work[:0]
			}
			s.claimed(&q, c, nil)
		}
		if sweeps < 49 || due < 49 {
			t.Errorf("%d sweeps and %d queries for due deliveries", sweeps, due)
		}
	})
}
