package dispatch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestRunFindsWhatCameUpInFront: an event under way fails, and an earlier one of its
// aggregate has been committed meanwhile. Its row is the first of the line then, and
// nothing but a look at the line finds it.
func TestRunFindsWhatCameUpInFront(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fault error
		takes time.Duration // more than the 100 ms that a claim waits
		when  time.Duration // the earlier one is committed
	}{
		"it fails":               {errors.New("rejected"), 300 * time.Millisecond, 200 * time.Millisecond},
		"it is throttled":        {Throttled(0, errors.New("429")), 300 * time.Millisecond, 200 * time.Millisecond},
		"it dies":                {Permanent(errors.New("gone")), 300 * time.Millisecond, 200 * time.Millisecond},
		"the other is in memory": {errors.New("rejected"), 120 * time.Millisecond, 60 * time.Millisecond},
		"in memory, and it dies": {Permanent(errors.New("gone")), 120 * time.Millisecond, 60 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *bubble) {
				db, r := t.db, t.r
				var c calls
				lane := testLane()
				lane.BlockOnDead = true
				r.to(t, "a", c.handler(func(ctx context.Context, e *Event) error {
					sleep(ctx, tc.takes)
					if e.ID == 2 && c.n() == 1 {
						return tc.fault
					}
					return nil
				}), lane, "x")
				r.start()
				<-r.Ready()
				first, second := db.begin(), db.begin()
				first.insertKeyed("x", "k", 0)
				second.insertKeyed("x", "k", 0)
				second.commit()
				eventually(t, "under way", func() bool { return c.n() == 1 })
				after(tc.when)
				first.commit()
				begin := time.Now()
				eventually(t, "the first is delivered", func() bool { return c.delivered()[1] == 1 })
				if took := time.Since(begin); took > readLinesEvery/3 {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// TestLaneForgetsALookThatWasOvertaken: while somebody looks for the first row of a
// line, that row becomes due, is claimed so, and delivered. What the look says is
// old then, and nobody would come for the rows behind it.
func TestLaneForgetsALookThatWasOvertaken(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		found LineState
		late  bool // the look comes back after the delivery, not during it
	}{
		"waiting, before": {LineWaiting, false},
		"waiting, after":  {LineWaiting, true},
		"locked, after":   {LineLocked, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var c calls
				l := newTestLane(c.handler(takes(time.Millisecond)), testLane())
				l.know(StoredLine{Ref: Ref{EventID: 10, Destination: "a"}, Key: "t/f", State: EntryParked})
				lines, _ := l.takeLooks(10, 1000)
				if len(lines) != 1 {
					t.Fatalf("%d lines to look at", len(lines))
				}
				b := &batch{work: []Work{{Event: Event{ID: 10, Type: "x", AggregateType: "t", AggregateID: "f"}, Destination: "a"}}, ready: make(chan struct{}, 1), query: &Query{Source: SourceDue}}
				b.jobs = []job{{batch: b, lane: l, event: &b.work[0].Event, fast: true}}
				b.fast, b.waiting, b.unanswered = 1, 1, 1
				l.grant(1)
				l.push([]*job{&b.jobs[0]})
				if !tc.late {
					l.looked(lines[0], tc.found, 10)
				}
				<-b.ready
				b.settled()
				if tc.late {
					l.looked(lines[0], tc.found, 10)
				}
				if !l.waitsForLook() {
					t.Error("nobody looks at what came behind")
				}
				l.workers.Wait()
			})
		})
	}
}
