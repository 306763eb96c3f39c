package dispatch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// What comes before a delayed event was given back to the table when that was put aside,
// by a relay that is gone. The next one has met neither of them when the delayed one is
// due: it delivers the other one first, also if that is locked for a while by somebody
// who is gone, and if there is more of it than is claimed at once.
func TestRunDelayedEventBehindWhatWasNotMet(t *testing.T) {
	t.Parallel()
	for name, locked := range map[string]time.Duration{"free": 0, "locked": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *bubble) {
				db, first := t.db, newRelay(t, t.db, 2, testConfig())
				var c calls
				down := true
				handler := c.handler(func(context.Context, *Event) error {
					if down {
						return Unavailable(errors.New("connection refused"))
					}
					return nil
				})
				first.to(t, "a", handler, testLane(), "x")
				first.start()
				<-first.Ready()
				w := db.begin()
				earlier := w.insertKeyed("x", "k", 0)
				delayed := w.insertKeyed("x", "k", time.Second)
				w.commit()
				eventually(t, "given back, and put aside", func() bool {
					_, aside := db.row(delayed, "")
					return aside && db.event(earlier).state == "fresh" && c.n() > 0
				})
				if err := first.stop(); err != nil {
					t.Error(err)
				}
				after(2 * time.Second)
				down = false
				if locked > 0 {
					somebody := db.begin()
					db.set(func() { db.events[earlier].locked = &fakeSession{db: db} })
					time.AfterFunc(locked, func() {
						db.set(func() { db.events[earlier].locked = nil })
						somebody.commit()
					})
				}
				n := c.n()
				t.r.to(t, "a", handler, testLane(), "x")
				t.r.start()
				eventually(t, "delivered", db.empty)
				if got := c.all()[n:]; len(got) != 2 || got[0].id != earlier || got[1].id != delayed {
					t.Errorf("delivered %+v, want %d and then %d", got, earlier, delayed)
				}
			})
		})
	}
}

// A relay whose only destination never has room for all there is, so that no run of sweeps
// comes to its end: what is due gets its place all the same.
func TestRunDelayedEventOfALaneThatIsNeverEmpty(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, first := t.db, newRelay(t, t.db, 2, testConfig())
		var c calls
		first.start() // it has no route for x
		<-first.Ready()
		w := db.begin()
		delayed := w.insertKeyed("x", "k", time.Second)
		w.commit()
		eventually(t, "put aside", func() bool { _, aside := db.row(delayed, ""); return aside })
		if err := first.stop(); err != nil {
			t.Error(err)
		}
		after(2 * time.Second)
		const n = 300
		db.write("x", n)
		lane := testLane()
		lane.Concurrency = 1
		t.r.to(t, "a", c.handler(func(ctx context.Context, _ *Event) error {
			sleep(ctx, 100*time.Millisecond)
			return nil
		}), lane, "x")
		t.r.start()
		eventually(t, "given its place", func() bool { _, aside := db.row(delayed, ""); return !aside })
		if c.n() >= n {
			t.Errorf("after %d calls, when there was nothing else any more", c.n())
		}
		eventually(t, "delivered", db.empty)
	})
}

// Somebody discards a dead letter, which makes the next stored delivery of its line due. An
// event before that has none: it was given back, as its only destination had no room.
func TestRunDiscardInFrontOfWhatWasNotMet(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]bool{"by the same relay": false, "by the next one": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *bubble) {
				db, first := t.db, newRelay(t, t.db, 2, testConfig())
				var a, b calls
				lane := testLane()
				lane.BlockOnDead = true
				handler := a.handler(func(_ context.Context, e *Event) error {
					if e.ID == 1 {
						return Permanent(errors.New("no"))
					}
					return nil
				})
				for _, r := range []*relay{first, t.r} {
					r.to(t, "a", handler, lane, "x")
					r.to(t, "b", b.handler(nil), testLane())
					r.fanOut(t, "xy", "a", "b")
				}
				write := func(typ string) {
					w := db.begin()
					w.insertKeyed(typ, "k", 0)
					w.commit()
					after(20 * time.Millisecond)
				}
				first.start()
				<-first.Ready()
				after(time.Second)
				write("x")
				if err := first.Pause("a"); err != nil {
					t.Fatal(err)
				}
				write("x")
				write("xy")
				if row, ok := db.row(3, "a"); !ok || row.State != EntryParked || db.event(2).state != "fresh" {
					t.Fatalf("event 2 is %s, event 3 has the row %+v", db.event(2).state, row)
				}
				db.set(func() {
					delete(db.rows, Ref{1, "a"})
					db.events[1].state = "done"
					db.rows[Ref{3, "a"}].State, db.rows[Ref{3, "a"}].due = EntryRetry, time.Now()
				})
				if again {
					if err := first.stop(); err != nil {
						t.Error(err)
					}
					t.r.start()
				} else if err := first.Resume("a"); err != nil {
					t.Error(err)
				}
				eventually(t, "delivered", db.empty)
				if all := a.all(); len(all) != 3 || all[1].id != 2 {
					t.Errorf("delivered %+v, want 1, 2 and 3", all)
				}
				if !again {
					if err := first.stop(); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// A delayed event that was claimed for a slot which the relay may have lost meanwhile is
// given back as it was, and neither delivered nor taken for one without destinations.
func TestDelayedEventOfASlotThatIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRelay(t, newFakeDB(), 1, testConfig())
		var c calls
		r.to(t, "a", c.handler(nil), testLane(), "x")
		r.sched.useSlots([]int32{1, 2}, time.Now().Add(slotsLast))
		after(2 * slotsLast) // the process was frozen on the way
		q := Query{Source: SourceDue}
		claimed := Claimed{Work: []Work{{Event: Event{ID: 1, Type: "x", AggregateType: "t", AggregateID: "k"}}}}
		turn := r.sched.claimed(&q, &claimed, nil)
		b := (&claimer{d: r.Dispatcher}).handOut(&q, &claimed, turn)
		s, left := b.settlement()
		if !s.Empty() || len(left) != 1 {
			t.Errorf("the settlement is %+v, and %v are given back", s, left)
		}
	})
}
