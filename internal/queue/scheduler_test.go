package queue

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/wake"
)

// newTestScheduler has two lanes: slow takes type s, fast takes type f, and both types are known.
// The first full sweep is over.
func newTestScheduler(t *testing.T) (s *scheduler, d *dispatch.Dispatcher, slow dispatch.QueueLane) {
	t.Helper()
	d, err := dispatch.New(testConfig().dispatcher(), nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range []string{"s", "f"} {
		h := delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil })
		if err := errors.Join(d.Add(typ, h, testLane()), d.Route(typ, typ)); err != nil {
			t.Fatal(err)
		}
		d.LanesOf(typ)
	}
	s = newScheduler(testConfig().Limits, d.QueueLanes(), d, wake.New(wake.Options{Poll: testConfig().PollInterval}))
	t.Cleanup(s.stop)
	q := s.pick(t)
	s.claimed(&q, &Claimed{NextDue: -1}, nil)
	q = s.pick(t)
	s.claimed(&q, &Claimed{Snapshot: Snapshot{Xmin: 1, Xmax: 1}}, nil)
	q = s.pick(t)
	s.claimed(&q, &Claimed{NextDue: -1}, nil)
	return s, d, d.QueueLanes()[0]
}

// lag makes a lane lag, beginning with the id.
func (s *scheduler) lag(l dispatch.QueueLane, after int64) {
	s.passedOver(map[dispatch.QueueLane]int64{l: after + 1})
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

// sweptIDs is a claim of consecutive ids.
func sweptIDs(from, to int64) *Claimed {
	c := &Claimed{Snapshot: Snapshot{Xmin: 1, Xmax: 1}}
	for id := from; id <= to; id++ {
		c.Work = append(c.Work, Work{Row: deliveries.Row{Event: delivery.Event{ID: id, Type: "s"}}, Fresh: true})
	}
	return c
}

func TestSchedulerKeepsWhatIsPassedOverDuringALanesSweep(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		passed int64
		found  func(q Query) *Claimed
		want   int64 // the lane's sweep continues after it
	}{
		"within a full claim":   {15, func(q Query) *Claimed { return sweptIDs(11, 10+int64(q.Limit)) }, 14},
		"before a full claim":   {5, func(q Query) *Claimed { return sweptIDs(11, 10+int64(q.Limit)) }, 4},
		"behind a full claim":   {99999, func(q Query) *Claimed { return sweptIDs(11, 10+int64(q.Limit)) }, 60},
		"before an empty claim": {15, func(Query) *Claimed { return sweptIDs(1, 0) }, 14},
		"within a lost claim":   {15, func(Query) *Claimed { return nil }, beforeAll},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _, slow := newTestScheduler(t)
			s.lag(slow, 10)
			q := s.pick(t)
			if q.lane == nil || q.lane != slow || q.After != 10 {
				t.Fatalf("not a sweep of the lane: %+v", q)
			}
			q.Limit = min(q.Limit, 50)
			s.lag(slow, tc.passed-1) // an older claim, handed out just now
			c := tc.found(q)
			if c == nil {
				s.claimed(&q, &Claimed{}, errLost)
			} else {
				s.claimed(&q, c, nil)
			}
			for range 3 { // other queries may come first
				q = s.pick(t)
				if q.lane != nil {
					break
				}
				s.claimed(&q, &Claimed{NextDue: -1, Snapshot: Snapshot{Xmin: 1, Xmax: 1}}, nil)
			}
			if q.lane == nil || q.lane != slow || q.After != tc.want {
				t.Errorf("goes on with %+v, want the lane's events behind %d", q, tc.want)
			}
		})
	}
}

func TestSchedulerFullSweepIncludesLanesThatLag(t *testing.T) {
	t.Parallel()
	s, d, slow := newTestScheduler(t)
	if err := d.Pause("s"); err != nil {
		t.Fatal(err)
	}
	s.lag(slow, 999)
	s.again() // the rows of a lost claim are free again, and may be anywhere
	q := s.pick(t)
	for q.Source != SourceSweep {
		s.claimed(&q, &Claimed{NextDue: -1}, nil)
		q = s.pick(t)
	}
	s.claimed(&q, &Claimed{Snapshot: Snapshot{Xmin: 1, Xmax: 1}}, nil)
	if err := d.Resume("s"); err != nil {
		t.Fatal(err)
	}
	q = s.pick(t)
	if q.Source == SourceDue { // they take turns
		q = s.pick(t)
	}
	if q.lane == nil || q.lane != slow || q.After != beforeAll {
		t.Errorf("the lane goes on with %+v", q)
	}
}

func TestSchedulerTakesTurnsBetweenSweeps(t *testing.T) {
	t.Parallel()
	s, _, slow := newTestScheduler(t)
	s.lag(slow, 10)
	s.sweep.setPolling(true)
	lane, common := 0, 0
	for range 20 {
		q := s.pick(t)
		switch {
		case q.Source == SourceDue:
			s.claimed(&q, &Claimed{NextDue: -1}, nil)
		case q.lane != nil:
			lane++
			s.claimed(&q, sweptIDs(q.After+1, q.After+int64(q.Limit)), nil)
		default:
			common++
			s.claimed(&q, &Claimed{Snapshot: Snapshot{Xmin: 1, Xmax: 1}, Work: sweptIDs(q.After+1, q.After+int64(q.Limit)).Work}, nil)
		}
	}
	if lane < 5 || common < 5 {
		t.Errorf("%d sweeps for the lane that lags, %d for all others", lane, common)
	}
}

// nextOf answers queries with empty claims until the wanted one comes, and returns how long that
// took.
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
		s.claimed(&q, &Claimed{NextDue: -1, Snapshot: Snapshot{Xmin: 1, Xmax: 1}}, nil)
	}
}

// A sleeping relay has only its timer: a common sweep that makes way must not wait for the next
// poll.
func TestSchedulerComesBackAfterARest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := newTestScheduler(t)
		s.turns.pauseUntil = time.Now().Add(longestPause)
		s.sweep.begin(sweepFull)
		if took := s.nextOf(t, func(q *Query) bool { return q.Source == SourceSweep }); took > longestPause {
			t.Errorf("it took %v", took)
		}
	})
}
