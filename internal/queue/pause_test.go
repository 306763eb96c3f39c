package queue

import (
	"errors"
	"testing"
	"time"

	"github.com/notifyd/notifyd/dispatch"
)

// pausedNow reports whether the figures show the first destination as paused.
func (r *relay) pausedNow() bool { return r.Stats().Destinations[0].Paused }

// TestPauseKeepsEventsInTheTable pauses one of two destinations under load. The other one
// continues, and the backlog is delivered once, as a first attempt.
func TestPauseKeepsEventsInTheTable(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var a, b calls
		r.to(t, "a", a.handler(takes(2*time.Millisecond)), testLane(), "x")
		r.to(t, "b", b.handler(nil), testLane(), "y")
		r.start()
		<-r.Ready()
		ids := db.write("x", 2000)
		eventually(t, "delivering", func() bool { return a.n() > 100 })
		if err := errors.Join(r.Pause("a"), r.Pause("a")); err != nil {
			t.Fatal(err)
		}
		if !r.pausedNow() {
			t.Error("the figures do not show the pause")
		}
		after(time.Second) // for calls that were running
		seen := a.n()
		ids = append(ids, db.write("x", 500)...)
		others := db.write("y", 500)
		eventually(t, "the other one continues", func() bool { return b.n() == 500 })
		after(10 * time.Minute)
		if n := a.n(); n != seen || n == 2000 {
			t.Errorf("%d calls when it was paused, %d ten minutes later", seen, n)
		}
		if s := r.Stats().Destinations[0]; s.Queued != 0 || s.Running != 0 {
			t.Errorf("%d wait in memory and %d run while it is paused", s.Queued, s.Running)
		}
		begin := time.Now()
		if err := errors.Join(r.Resume("a"), r.Resume("a")); err != nil {
			t.Fatal(err)
		}
		eventually(t, "all delivered", db.empty)
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("took %v after it was resumed", took)
		}
		a.once(t, ids)
		b.once(t, others)
		for _, one := range a.all() {
			if one.attempt != 1 {
				t.Fatalf("an attempt was counted: %+v", one)
			}
		}
	})
}

// TestPauseWhileDown: a paused destination is not probed until it is resumed.
func TestPauseWhileDown(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		p := &place{}
		p.down.Store(true)
		r.to(t, "a", p.handler(), testLane(), "x")
		r.start()
		<-r.Ready()
		ids := db.write("x", 50)
		eventually(t, "unavailable", func() bool { return r.Stats().Destinations[0].Down })
		if err := r.Pause("a"); err != nil {
			t.Fatal(err)
		}
		after(time.Minute)
		seen := p.n()
		p.down.Store(false)
		after(10 * time.Minute)
		if n := p.n() - seen; n != 0 {
			t.Errorf("probed %d times while it was paused", n)
		}
		if err := r.Resume("a"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "all delivered", db.empty)
		p.once(t, ids)
	})
}

func TestPauseNobody(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		t.r.to(t, "a", (&calls{}).handler(nil), testLane(), "x")
		t.r.start()
		<-t.r.Ready()
		for _, err := range []error{t.r.Pause("z"), t.r.Resume("")} {
			if !errors.Is(err, dispatch.ErrDestination) {
				t.Errorf("%v", err)
			}
		}
	})
}
