package dispatch

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A delayed event is due, and is claimed beside so many others that its lane has no room
// for it: it becomes a row. What is written later in its aggregate does not go past it,
// although its claim is not settled.
func TestRunDelayedEventWithoutRoom(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var c calls
		const n = 150
		due := time.Now().Add(2 * time.Second)
		lane := testLane()
		lane.Concurrency = 2
		r.to(t, "a", c.handler(func(ctx context.Context, e *Event) error {
			switch {
			case e.ID <= n && e.Attempt == 1:
				sleep(ctx, time.Millisecond)
				return RetryAfter(time.Until(due), errors.New("later"))
			case e.ID == n: // keeps the claim waiting
				sleep(ctx, 90*time.Millisecond)
			default:
				sleep(ctx, 100*time.Microsecond)
			}
			return nil
		}), lane, "x")
		r.start()
		<-r.Ready()
		db.write("x", n)
		w := db.begin()
		delayed := w.insertKeyed("x", "k", time.Until(due)-time.Millisecond)
		w.commit()
		eventually(t, "all have failed once", func() bool { return c.n() == n })
		if err := r.Pause("a"); err != nil { // so that all are claimed together
			t.Error(err)
		}
		after(time.Until(due.Add(100 * time.Millisecond)))
		if err := r.Resume("a"); err != nil {
			t.Error(err)
		}
		after(30 * time.Millisecond)
		w = db.begin()
		later := w.insertKeyed("x", "k", 0)
		w.commit()
		eventually(t, "all delivered", db.empty)
		var got []int64
		for _, one := range c.all() {
			if one.id == delayed || one.id == later {
				got = append(got, one.id)
			}
		}
		if len(got) != 2 || got[0] != delayed {
			t.Errorf("delivered %v, want %d and then %d", got, delayed, later)
		}
	})
}

// The same for a lane that lags behind, and has room.
func TestDelayedEventOfALaneThatLags(t *testing.T) {
	t.Parallel()
	l := newTestLane(nil, testLane())
	l.running = l.cfg.Concurrency
	l.lag(3)
	due, joined := claimDue(l, 5, "")
	if joined {
		t.Fatal("5 is delivered although the lane has yet to meet what comes after 3")
	}
	l.mu.Lock()
	l.behind, l.refused = inOrder, inOrder // its sweep has been by
	l.mu.Unlock()
	if _, joined := lineClaim(l, SourceSweep, 7); len(joined) > 0 {
		t.Error("7 goes past 5, which is being stored")
	}
	due.settled()
}

// claimDue hands something that is due of the aggregate of lineClaim to the lane: a stored
// delivery, or a delayed event, which has no destination yet.
func claimDue(l *lane, id int64, dest string) (b *batch, joined bool) {
	b = &batch{
		work: []Work{{Event: Event{ID: id, AggregateType: "t", AggregateID: "k"}, Destination: dest}}, plans: make([]plan, 1), jobs: make([]job, 1),
		lanes: []*lane{l}, ready: make(chan struct{}, 1), late: &leases{}, query: &Query{Source: SourceDue}, unanswered: 1,
	}
	b.jobs[0] = job{batch: b, lane: l, event: &b.work[0].Event}
	l.grant(1)
	return b, len(l.push([]*job{&b.jobs[0]})) == 0
}

// The same for a stored delivery that was made due when a dead letter in front of it was
// discarded, while the lane's own sweep has not come that far.
func TestDueDeliveryOfALaneThatLags(t *testing.T) {
	t.Parallel()
	cfg := testLane()
	cfg.BlockOnDead = true
	l := newTestLane(nil, cfg)
	l.running = l.cfg.Concurrency
	l.know(StoredLine{Ref: Ref{5, "a"}, Key: "t/k", State: EntryParked})
	l.lag(3)
	due, joined := claimDue(l, 5, "a")
	if joined {
		t.Fatal("5 is delivered although the lane has yet to meet what comes after 3")
	}
	due.settled()
	if lines, _ := l.takeLooks(1, inOrder); len(lines) > 0 {
		t.Error("looked at before the lane has come that far")
	}
	l.sweepBegins(3)
	l.sweepEnded(3, inOrder)
	if lines, _ := l.takeLooks(1, inOrder); len(lines) != 1 {
		t.Error("not looked at when the lane has come that far")
	}
}

// A look brings a row for which there is no room any more. The row is locked until its
// claim is settled: a look before that would find it so, and leave it to the next poll.
func TestLookWithoutRoom(t *testing.T) {
	t.Parallel()
	l := newTestLane(nil, testLane())
	l.know(StoredLine{Ref: Ref{1, "a"}, Key: "t/k", State: EntryParked})
	lines, _ := l.takeLooks(1, inOrder)
	if len(lines) != 1 {
		t.Fatalf("%d lines to look at", len(lines))
	}
	b := &batch{}
	l.refuseRow(b, &Work{Event: Event{ID: 1, AggregateType: "t", AggregateID: "k"}, Destination: l.name})
	l.looked(lines[0], LineClaimed, 1)
	if again, _ := l.takeLooks(1, inOrder); len(again) > 0 {
		t.Error("looked at while the row is locked")
	}
	b.settled()
	if again, _ := l.takeLooks(1, inOrder); len(again) != 1 {
		t.Error("not looked at when the row is free")
	}
}
