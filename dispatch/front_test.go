package dispatch

import (
	"testing"
	"testing/synctest"
	"time"
)

// A gap is given up when a claim that looked into it has found nothing, and nobody is
// left who could commit in it. A claim that was asked for before the gap came to be
// looked into says nothing of it, however it comes there.
func TestGapThatAClaimOnItsWayDidNotLookInto(t *testing.T) {
	t.Parallel()
	gapAt := func(from, to int64, old bool) gap {
		return gap{Range: Range{from, to}, since: time.Now().Add(-time.Minute), dated: time.Now().Add(-time.Minute), under: []uint64{7}, left: 1, old: old}
	}
	for name, change := range map[string]func(f *front){
		"from the front of a lane": func(f *front) {
			f.merge(&front{head: 100, gaps: []gap{gapAt(20, 29, false)}})
		},
		"from there, beyond one that is here": func(f *front) {
			f.gaps = append(f.gaps, gapAt(20, 24, false))
			f.merge(&front{head: 100, gaps: []gap{gapAt(20, 29, false)}})
		},
		"joined with one that waited": func(f *front) {
			f.gaps = []gap{gapAt(20, 24, false), gapAt(26, 29, true)}
			f.join()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &front{head: 100}
				asked := time.Now()
				sleep(t.Context(), time.Millisecond)
				change(f)
				over := Snapshot{Xmin: 10, Xmax: 10}
				sleep(t.Context(), time.Millisecond)
				f.saw(asked, over, 100, nil)
				if ranges := f.asks(100); len(ranges) != 1 || ranges[0].From != 20 || ranges[0].To != 29 {
					t.Errorf("after a claim that was on its way, %v is to be looked into", ranges)
				}
				asked = time.Now()
				f.saw(asked, over, 25, nil)
				if len(f.gaps) != 1 {
					t.Errorf("after a claim that did not look so far, %v is left", f.gaps)
				}
				if f.saw(asked, over, 100, nil); len(f.gaps) != 0 {
					t.Errorf("after a claim that looked into it, %v is left", f.gaps)
				}
			})
		})
	}
}

// A gap that both fronts have is not put off by each merge.
func TestGapOfBothFronts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gap{Range: Range{20, 29}, since: time.Now().Add(-time.Minute), dated: time.Now().Add(-time.Minute)}
		f := &front{head: 100, gaps: []gap{g}}
		asked := time.Now()
		sleep(t.Context(), time.Millisecond)
		f.merge(&front{head: 100, gaps: []gap{g, {Range: Range{20, 22}, since: g.since, dated: g.dated}}})
		if f.saw(asked, Snapshot{Xmin: 10, Xmax: 10}, 100, nil); len(f.gaps) != 0 {
			t.Errorf("%v is left", f.gaps)
		}
	})
}

// A claim that was cut short has not looked into what comes behind.
func TestSchedulerKeepsGapsBehindACut(t *testing.T) {
	t.Parallel()
	s, _ := newTestScheduler(t)
	long := time.Now().Add(-time.Minute)
	s.mu.Lock()
	s.knowing = true
	s.front.reset(100)
	s.front.gaps = []gap{
		{Range: Range{10, 10}, since: long, dated: long}, {Range: Range{20, 20}, since: long, dated: long}, {Range: Range{30, 30}, since: long, dated: long},
	}
	s.mu.Unlock()
	s.hint(101)
	q := s.pick(t)
	if q.Source != SourceIDs || len(q.Gaps) != 3 {
		t.Fatalf("%+v", q)
	}
	s.answer(&q, &Claimed{
		NextDue: -1, Snapshot: Snapshot{Xmin: 1, Xmax: 1}, LateCut: true, Late: []Late{{ID: 20, AggregateType: "t", AggregateID: "k"}},
	}, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	if ranges := s.front.asks(100); len(ranges) != 2 || ranges[0].From != 20 || ranges[1].From != 30 {
		t.Errorf("%v is to be looked into", ranges)
	}
}
