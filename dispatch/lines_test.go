package dispatch

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// lineClaim hands the events of one aggregate to the lane as a claim would: fresh ones,
// or its rows. It returns those that were put into the line.
func lineClaim(l *lane, source Source, ids ...int64) (b *batch, joined []int64) {
	b = &batch{
		work: make([]Work, len(ids)), plans: make([]plan, len(ids)), jobs: make([]job, len(ids)),
		lanes: []*lane{l}, ready: make(chan struct{}, 1), late: &leases{}, query: &Query{Source: source}, unanswered: len(ids),
	}
	for i, id := range ids {
		w := Work{Event: Event{ID: id, AggregateType: "t", AggregateID: "k"}, Fresh: source == SourceSweep}
		if !w.Fresh {
			w.Destination = l.name
		}
		b.work[i] = w
		b.jobs[i] = job{batch: b, work: i, lane: l, event: &b.work[i].Event}
		l.grant(1)
		if len(l.push([]*job{&b.jobs[i]})) == 0 {
			joined = append(joined, id)
		}
	}
	return b, joined
}

// Two claims store 5 and 7, in that order, but the settlement of the second is there
// first, and a look at the line that was on its way finds its row alone.
func TestLookThatMissesARow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ found, want []int64 }{
		"neither is there":  {[]int64{1}, []int64{1}},
		"the first is not":  {[]int64{1, 7}, []int64{1}},
		"nothing before":    {[]int64{7}, nil},
		"the second is not": {[]int64{1, 5}, []int64{1, 5}},
		"both are there":    {[]int64{1, 5, 7}, []int64{1, 5, 7}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { lookThatMisses(t, c.found, c.want) })
		})
	}
}

func lookThatMisses(t *testing.T, found, want []int64) {
	t.Helper()
	l := newTestLane(HandlerFunc(takes(time.Second)), testLane())
	defer l.workers.Wait()
	l.know(StoredLine{Ref: Ref{1, "a"}, Key: "t/k", State: EntryParked})
	lines, _ := l.takeLooks(1, inOrder)
	if len(lines) != 1 {
		t.Fatalf("%d lines to look at", len(lines))
	}
	var stored []*batch
	for _, id := range []int64{5, 7} {
		b, joined := lineClaim(l, SourceSweep, id)
		if len(joined) > 0 {
			t.Fatalf("%d goes past what is stored", id)
		}
		stored = append(stored, b)
	}
	look, joined := lineClaim(l, SourceLines, found...)
	if !slices.Equal(joined, want) {
		t.Errorf("of %v, %v are delivered, want %v", found, joined, want)
	}
	l.looked(lines[0], LineClaimed, found[0])
	for _, b := range stored {
		b.settled()
	}
	// What the look has locked it may not find locked.
	if again, _ := l.takeLooks(1, inOrder); len(again) > 0 {
		t.Error("looked at again before the claim was settled")
	}
	look.settled()
	if len(joined) > 0 {
		return // it is looked at when they have been delivered
	}
	if again, _ := l.takeLooks(1, inOrder); len(again) != 1 {
		t.Fatal("not looked at again")
	}
	if _, joined := lineClaim(l, SourceLines, 1, 5, 7); len(joined) != 3 {
		t.Errorf("the next look has %v delivered, want all", joined)
	}
}

// What is cut off with a job that has failed is answered with it. Its claim may be
// settled then, and its memory be another job's, before the worker goes on.
func TestWorkerForgetsWhatIsCut(t *testing.T) {
	t.Parallel()
	l := newTestLane(nil, testLane())
	l.running = l.cfg.Concurrency // nobody takes what is pushed but this test
	b, joined := lineClaim(l, SourceSweep, 1, 2)
	if len(joined) != 2 {
		t.Fatalf("%v are delivered", joined)
	}
	b.unanswered = 2
	l.mu.Lock()
	jobs := []*job{l.takeLocked(nil)[0], &b.jobs[1]}
	jobs[1].started = true
	l.followers--
	l.mu.Unlock()
	rest := l.finishedBefore(time.Now(), time.Microsecond, jobs[:1], []outcome{{verdict: failed, failures: 1}}, jobs[1:])
	if len(rest) > 0 || b.unanswered > 0 {
		t.Errorf("%d jobs are left, and %d not answered", len(rest), b.unanswered)
	}
}

// A line that is in the queue of those to look at gets a row that comes before the others.
func TestLookAtWhatBeginsEarlierNow(t *testing.T) {
	t.Parallel()
	l := newTestLane(nil, testLane())
	l.running = l.cfg.Concurrency
	l.know(StoredLine{Ref: Ref{50, "a"}, Key: "t/p", State: EntryParked})
	l.know(StoredLine{Ref: Ref{60, "a"}, Key: "t/k", State: EntryParked})
	b, joined := lineClaim(l, SourceSweep, 10)
	if len(joined) > 0 {
		t.Fatal("10 goes past what is stored")
	}
	b.settled()
	if lines, _ := l.takeLooks(10, 20); len(lines) != 1 || lines[0].key != "t/k" {
		t.Errorf("%d lines are looked at up to 20, want the one that begins with 10", len(lines))
	}
}
