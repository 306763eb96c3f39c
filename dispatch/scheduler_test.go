package dispatch

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// silentBell notes what the scheduler asked of the bell last.
type silentBell struct{ last bellOrder }

func (b *silentBell) silence()    { b.last = bellSilence }
func (*silentBell) watch(float64) {}

func (b *silentBell) ring() { b.last = bellRing }

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
	s.answer(&q, &Claimed{NextDue: -1}, nil)
	q = s.pick(t)
	s.answer(&q, &Claimed{Snapshot: Snapshot{Xmin: 1, Xmax: 1}}, nil)
	q = s.pick(t)
	s.answer(&q, &Claimed{NextDue: -1}, nil)
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

// answer takes a claim and hands it out.
func (s *scheduler) answer(q *Query, c *Claimed, err error) {
	s.claimed(q, c, err)
	if err == nil && q.lane != nil {
		s.caughtUp(q, c)
	}
}

// swept is a claim of consecutive ids.
func sweptIDs(from, to int64) *Claimed {
	c := &Claimed{Snapshot: Snapshot{Xmin: 1, Xmax: 1}}
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
		"within a lost claim":   {15, func(Query) *Claimed { return nil }, beforeAll},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, slow := newTestScheduler(t)
			slow.pace = time.Millisecond
			slow.lag(10)
			q := s.pick(t)
			if q.lane != slow || q.After != 10 {
				t.Fatalf("not a sweep of the lane: %+v", q)
			}
			q.Limit = min(q.Limit, 50)
			slow.lag(tc.passed - 1) // an older claim, handed out just now
			c := tc.found(q)
			if c == nil {
				s.answer(&q, &Claimed{}, errLost)
			} else {
				s.answer(&q, c, nil)
			}
			for range 3 { // others may come first
				q = s.pick(t)
				if q.lane != nil {
					break
				}
				s.answer(&q, &Claimed{NextDue: -1, Snapshot: Snapshot{Xmin: 1, Xmax: 1}}, nil)
			}
			if q.lane != slow || q.After != tc.want {
				t.Errorf("goes on with %+v, want the lane's events behind %d", q, tc.want)
			}
		})
	}
}

func TestSchedulerFullSweepIncludesLanesThatLag(t *testing.T) {
	t.Parallel()
	s, slow := newTestScheduler(t)
	slow.load = slow.capacityLocked() // full
	slow.lag(999)
	s.again() // the rows of a lost claim are free again, and may be anywhere
	q := s.pick(t)
	for q.Source != SourceSweep {
		s.answer(&q, &Claimed{NextDue: -1}, nil)
		q = s.pick(t)
	}
	s.answer(&q, &Claimed{Snapshot: Snapshot{Xmin: 1, Xmax: 1}}, nil)
	slow.load = 0
	if q := s.pick(t); q.lane != slow || q.After != beforeAll {
		t.Errorf("the lane goes on with %+v", q)
	}
}

func TestSchedulerTakesTurnsBetweenSweeps(t *testing.T) {
	t.Parallel()
	s, slow := newTestScheduler(t)
	slow.lag(10)
	s.sweep.wake()
	lane, common := 0, 0
	for range 20 {
		q := s.pick(t)
		switch {
		case q.Source == SourceDue:
			s.answer(&q, &Claimed{NextDue: -1}, nil)
		case q.lane != nil:
			lane++
			s.answer(&q, sweptIDs(q.After+1, q.After+int64(q.Limit)), nil)
		default:
			common++
			s.answer(&q, &Claimed{Snapshot: Snapshot{Xmin: 1, Xmax: 1}, Work: sweptIDs(q.After+1, q.After+int64(q.Limit)).Work}, nil)
		}
	}
	if lane < 5 || common < 5 {
		t.Errorf("%d sweeps for the lane that lags, %d for all others", lane, common)
	}
}

// nextOf answers what there is to claim with nothing, until it is what is wanted, and
// returns how long that took.
func (s *scheduler) nextOf(t *testing.T, wanted func(q *Query) bool) time.Duration {
	t.Helper()
	begin := time.Now()
	for {
		q, ok := s.next()
		if !ok {
			t.Fatal("stopped")
		}
		if wanted(&q) {
			return time.Since(begin)
		}
		s.answer(&q, &Claimed{NextDue: -1, Snapshot: Snapshot{Xmin: 1, Xmax: 1}}, nil)
	}
}

// A relay that is asleep has nothing but its timer: what rests is not to wait for the
// next poll.
func TestSchedulerComesBackAfterARest(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		rests  func(s *scheduler, slow *lane)
		wanted func(q *Query) bool
		within time.Duration
	}{
		"a lane in doubt": {func(s *scheduler, slow *lane) {
			slow.lag(10)
			s.lagOf(slow).doubt.raise()
			s.lagOf(slow).rest = time.Now().Add(doubtPause)
		}, func(q *Query) bool { return q.lane != nil }, doubtPause},
		"the common sweep, which makes way": {func(s *scheduler, _ *lane) {
			s.making = time.Now().Add(longestWay)
			s.sweep.begin(sweepFull)
		}, func(q *Query) bool { return q.Source == SourceSweep }, longestWay},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, slow := newTestScheduler(t)
				s.sweep.mode = asleep
				tc.rests(s, slow)
				if took := s.nextOf(t, tc.wanted); took > tc.within {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// A lane that begins to lag while somebody may hold locks nobody serves any more
// has as much reason to look at them as the common sweep that it leaves.
func TestSchedulerLagsInDoubt(t *testing.T) {
	t.Parallel()
	s, slow := newTestScheduler(t)
	s.mu.Lock()
	s.doubt.raise()
	s.front.reset(100)
	s.mu.Unlock()
	slow.lag(10)
	for range 4 {
		q := s.pick(t)
		if q.lane == slow {
			if !slices.Contains(q.Gaps, Range{11, 100}) {
				t.Errorf("it looks into %v, and not at what it may meet up to %d", q.Gaps, q.Upto)
			}
			return
		}
		s.answer(&q, &Claimed{NextDue: -1, Snapshot: Snapshot{Xmin: 1, Xmax: 1}}, nil)
	}
	t.Error("no sweep of the lane")
}
