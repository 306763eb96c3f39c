package dispatch

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
)

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

// TestRunShedsWholeLines: a worker has x and 1 of an aggregate in hand, 2 of it waits behind
// 1. Both claims are called away and lease what they have; the settlement of the second is
// lost with its connection, that of the first is not. x takes 30 ms, so 1 goes back to the
// queue, and is taken together with 2. The lease of 1 is good: 1 is delivered once.
func TestRunShedsWholeLines(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		cfg := testConfig()
		cfg.Claims = 2
		db := t.db
		r := newRelay(t, db, 2, cfg)
		var c calls
		var slow, one, third atomic.Int64
		lane := testLane()
		lane.Concurrency = 4
		r.to(t, "a", c.handler(func(ctx context.Context, e *Event) error {
			switch e.ID {
			case slow.Load():
				sleep(ctx, 30*time.Millisecond)
			case third.Load(): // keeps the first claimer waiting
				sleep(ctx, 40*time.Millisecond)
			case one.Load():
				sleep(ctx, 2*time.Millisecond)
			}
			return nil
		}), lane, "x")
		r.start()
		<-r.Ready()
		db.write("x", 400)
		eventually(t, "known to be fast", db.empty)
		after(3 * time.Second)
		w := db.begin()
		slow.Store(w.insert("x", 0))
		one.Store(w.insertKeyed("x", "k", 0))
		slowID, first := slow.Load(), one.Load()
		third.Store(slowID + 5)
		w.commit()
		after(time.Millisecond)
		w = db.begin()
		second := w.insertKeyed("x", "k", 0)
		w.insertKeyed("x", "k", 0)
		w.insertKeyed("x", "k", 0)
		w.commit()
		after(2 * time.Millisecond)
		db.write("x", 1) // calls the first claim away
		after(2 * time.Millisecond)
		lost := false
		db.set(func() {
			db.faults = func(op string) faultKind {
				if row := db.rows[Ref{first, "a"}]; op == "settle" && !lost && row != nil && row.State == EntryRunning && db.events[second].state == "fresh" && db.events[second].locked != nil {
					lost = true
					return lostBefore
				}
				return noFault
			}
		})
		db.write("x", 1) // and the second one
		after(time.Millisecond)
		for range 50 { // others are fast
			db.write("x", 1)
			after(250 * time.Microsecond)
		}
		eventually(t, "all delivered", db.empty)
		after(time.Second)
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if !lost {
			t.Error("no settlement was lost")
		}
		c.once(t, []int64{slowID, first})
	})
}
