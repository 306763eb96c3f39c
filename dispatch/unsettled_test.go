package dispatch

import (
	"context"
	"errors"
	"testing"
	"time"
)

// soonAgain is long for a delivery that is tried again at once, and short of the time
// after which stored lines are read again.
const soonAgain = readLinesEvery / 4

// doubtLane tries again so soon that what takes longer has been forgotten.
func doubtLane() LaneConfig {
	lane := testLane()
	lane.Backoff = Backoff{Initial: 50 * time.Millisecond, Max: 50 * time.Millisecond, Multiplier: 1}
	return lane
}

// A stored delivery that is the first of its line, and waits in it, is claimed and fails.
// Its settlement does not get into the database: it waits in its line as before, and is
// looked for, as nothing else would ever find it.
func TestRunFailureOfAStoredDeliveryIsLost(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]faultKind{"lost": lostBefore, "lost on the way back": lostAfter, "refused": refused} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *bubble) {
				db, r := t.db, t.r
				var a, b calls
				failed, lost := false, false
				db.faults = func(op string) faultKind {
					if op == "settle" && failed && !lost {
						lost = true
						return kind
					}
					return noFault
				}
				r.to(t, "a", a.handler(nil), doubtLane())
				r.to(t, "b", b.handler(func(context.Context, *Event) error {
					if b.n() > 1 {
						return nil
					}
					db.set(func() { failed = true })
					return errors.New("no")
				}), doubtLane())
				r.fanOut(t, "x", "a", "b")
				r.start()
				<-r.Ready()
				if err := r.Pause("b"); err != nil {
					t.Error(err)
				}
				w := db.begin()
				id := w.insertKeyed("x", "k", 0)
				w.commit()
				after(100 * time.Millisecond)
				if row, ok := db.row(id, "b"); !ok || row.State != EntryParked {
					t.Fatalf("the row is %+v", row)
				}
				begin := time.Now()
				if err := r.Resume("b"); err != nil {
					t.Error(err)
				}
				eventually(t, "all delivered", db.empty)
				if took := time.Since(begin); !lost || took > soonAgain {
					t.Errorf("lost %t, delivered after %v: %+v", lost, took, b.all())
				}
			})
		})
	}
}

// A lease is lost with its settlement, so its event is met again, and waits in its line for
// the delivery that goes on. That fails, and its answer is refused, as there is no such
// lease: the row waits as before, and is looked for.
func TestRunRefusedAnswerLeavesItsLineMoving(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var a, b calls
		lost := false
		db.faults = func(op string) faultKind {
			if op == "settle" && b.n() == 1 && !lost {
				lost = true
				return lostBefore
			}
			return noFault
		}
		r.to(t, "a", a.handler(nil), doubtLane())
		r.to(t, "b", b.handler(func(ctx context.Context, _ *Event) error {
			if b.n() > 1 {
				return nil
			}
			sleep(ctx, 1500*time.Millisecond)
			return errors.New("no")
		}), doubtLane())
		r.fanOut(t, "x", "a", "b")
		r.start()
		<-r.Ready()
		w := db.begin()
		w.insertKeyed("x", "k", 0)
		w.commit()
		begin := time.Now()
		eventually(t, "all delivered", db.empty)
		if took := time.Since(begin); !lost || took > soonAgain {
			t.Errorf("lost %t, delivered after %v: %+v", lost, took, b.all())
		}
		if n := r.Stats().Fenced; n != 1 {
			t.Errorf("%d answers were refused, want 1", n)
		}
	})
}

// A dead letter that holds its line back is dealt with while what comes behind it is being
// written: whoever does so does not see that, so the line is looked at once it is written.
func TestLaneLooksBehindADeadLetterThatMayBeGone(t *testing.T) {
	t.Parallel()
	cfg := testLane()
	cfg.BlockOnDead = true
	l := newTestLane(nil, cfg)
	l.know(StoredLine{Ref: Ref{1, "a"}, Key: "t/k", State: EntryDead})
	b := &batch{}
	l.mu.Lock()
	l.storeBehindLocked(l.lines["t/k"], 2, b)
	l.mu.Unlock()
	if lines, _ := l.takeLooks(1, inOrder); len(lines) > 0 {
		t.Error("looked at while it is being written")
	}
	b.settled()
	lines, _ := l.takeLooks(1, inOrder)
	if len(lines) != 1 {
		t.Fatal("not looked at when it is written")
	}
	l.looked(lines[0], LineBlocked, 1)
	if lines, _ := l.takeLooks(1, inOrder); len(lines) > 0 {
		t.Error("looked at again although the dead letter is there")
	}
}
