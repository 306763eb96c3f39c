package dispatch

import (
	"testing"
	"time"
)

// silentBell notes what the scheduler asked of the bell last.
type silentBell struct{ last bellOrder }

func (b *silentBell) silence() { b.last = bellSilence }
func (b *silentBell) ring()    { b.last = bellRing }

// newTestScheduler has two lanes: slow takes type s, fast takes type f, and
// both have been met. The first full sweep is over.
func newTestScheduler(t *testing.T) (s *scheduler, slow *lane) {
	t.Helper()
	cfg := testLane()
	slow = newTestLane(nil, cfg)
	fast := newTestLane(nil, cfg)
	slow.name, fast.name = "slow", "fast"
	r := newRouter()
	r.exact["s"], r.exact["f"] = []*lane{slow}, []*lane{fast}
	r.route("s")
	r.route("f")
	s = newScheduler(testConfig(), []*lane{slow, fast}, r, &silentBell{})
	t.Cleanup(s.stop)
	q := s.pick(t)
	s.claimed(q, &Claimed{NextDue: -1}, nil)
	q = s.pick(t)
	s.claimed(q, &Claimed{Xmin: 1, Xmax: 1}, nil)
	q = s.pick(t)
	s.claimed(q, &Claimed{NextDue: -1}, nil)
	return s, slow
}

func (s *scheduler) pick(t *testing.T) Query {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	q, ok := s.pickLocked(time.Now())
	if !ok {
		t.Fatal("nothing to claim")
	}
	return q
}

// swept is a claim of consecutive ids.
func sweptIDs(from, to int64) *Claimed {
	c := &Claimed{Xmin: 1, Xmax: 1}
	for id := from; id <= to; id++ {
		c.Work = append(c.Work, Work{Event: Event{ID: id, Type: "s"}, Fresh: true})
	}
	return c
}

func TestSchedulerKeepsWhatIsPassedOverDuringALanesSweep(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		passed int64
		found  func(q Query) *Claimed
		want   int64 // the lane's sweep goes on behind it
	}{
		"within a full claim":   {15, func(q Query) *Claimed { return sweptIDs(11, 10+int64(q.Limit)) }, 14},
		"before a full claim":   {5, func(q Query) *Claimed { return sweptIDs(11, 10+int64(q.Limit)) }, 4},
		"behind a full claim":   {99999, func(q Query) *Claimed { return sweptIDs(11, 10+int64(q.Limit)) }, 60},
		"before an empty claim": {15, func(Query) *Claimed { return sweptIDs(1, 0) }, 14},
		"within a lost claim":   {15, func(Query) *Claimed { return nil }, beginning},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, slow := newTestScheduler(t)
			slow.pace = time.Millisecond
			s.passedOver(slow, 11)
			q := s.pick(t)
			if len(q.Only) != 1 || q.Only[0] != "s" || q.After != 10 {
				t.Fatalf("not a sweep of the lane: %+v", q)
			}
			q.Limit = min(q.Limit, 50)
			s.passedOver(slow, tc.passed) // an older claim, settled just now
			c := tc.found(q)
			if c == nil {
				s.claimed(q, &Claimed{}, errLost)
			} else {
				s.claimed(q, c, nil)
			}
			for range 3 { // others may come first
				q = s.pick(t)
				if q.Source == SourceSweep && len(q.Only) == 1 {
					break
				}
				s.claimed(q, &Claimed{NextDue: -1, Xmin: 1, Xmax: 1}, nil)
			}
			if len(q.Only) != 1 || q.After != tc.want {
				t.Errorf("goes on with %+v, want the lane's events behind %d", q, tc.want)
			}
		})
	}
}

func TestSchedulerFullSweepIncludesLanesThatLag(t *testing.T) {
	t.Parallel()
	s, slow := newTestScheduler(t)
	slow.load = slow.capacityLocked() // full
	s.passedOver(slow, 1000)
	s.again() // the rows of a lost claim are free again, and may be anywhere
	q := s.pick(t)
	for q.Source != SourceSweep {
		s.claimed(q, &Claimed{NextDue: -1}, nil)
		q = s.pick(t)
	}
	s.claimed(q, &Claimed{Xmin: 1, Xmax: 1}, nil)
	slow.load = 0
	if q := s.pick(t); len(q.Only) != 1 || q.After != beginning {
		t.Errorf("the lane goes on with %+v", q)
	}
}

func TestSchedulerTakesTurnsBetweenSweeps(t *testing.T) {
	t.Parallel()
	s, slow := newTestScheduler(t)
	s.passedOver(slow, 11)
	s.sweep.wake()
	lane, common := 0, 0
	for range 20 {
		q := s.pick(t)
		switch {
		case q.Source == SourceDue:
			s.claimed(q, &Claimed{NextDue: -1}, nil)
		case len(q.Only) > 0:
			lane++
			s.claimed(q, sweptIDs(q.After+1, q.After+int64(q.Limit)), nil)
		default:
			common++
			s.claimed(q, &Claimed{Xmin: 1, Xmax: 1, Work: sweptIDs(q.After+1, q.After+int64(q.Limit)).Work}, nil)
		}
	}
	if lane < 5 || common < 5 {
		t.Errorf("%d sweeps for the lane that lags, %d for all others", lane, common)
	}
}
