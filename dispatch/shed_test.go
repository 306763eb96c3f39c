package dispatch

import "testing"

// What is given back after the lane was asked whether its own sweep may begin is not
// forgotten: it is locked until its claim is settled, so the sweep would go past it, and
// take what comes after it in its aggregate.
func TestSweepDoesNotBeginBesideWhatIsGivenBack(t *testing.T) {
	t.Parallel()
	l := newTestLane(nil, testLane())
	l.lag(2)
	after, _, ready := l.lagging()
	b := &batch{}
	l.refuse(b, 12)
	if !ready || l.sweepBegins(after) {
		t.Errorf("ready %v: begins behind %d although 12 is being given back", ready, after)
	}
	if q := (&Query{Source: SourceSweep, After: after, lane: l}); l.takesLocked(25, q) {
		t.Error("25 is taken before 12")
	}
	b.settled()
	if !l.sweepBegins(after) {
		t.Error("does not begin although everything is free")
	}
	l.sweepEnded(after, 30)
	l.lag(1)
	if l.sweepBegins(30) {
		t.Error("begins behind 30 although 2 is to be met again")
	}
}
