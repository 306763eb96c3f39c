package stream

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// These tests run in virtual time, on the fakes of the model.

// timed runs a test in virtual time, with relays that want a to d.
func timed(t *testing.T, f func(m *keeperModel)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newKeeperModel(keeperPlan{slow: modelDelivery})
		for i := range m.plan.wants {
			m.plan.wants[i] = []string{"a", "b", "c", "d"}
		}
		f(m)
		m.stopAll()
		for _, b := range m.broken {
			t.Error(b)
		}
	})
}

func elapse(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // virtual time
	synctest.Wait()
}

// begun returns the destinations for which a relay is working, in order.
func (r *fakeRelay) begun() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, u := range r.units {
		u.mu.Lock()
		if !u.lastTime.IsZero() {
			names = append(names, name)
		}
		u.mu.Unlock()
	}
	slices.Sort(names)
	return names
}

// TestNoWaitAlone: a relay that is alone has all units after a few round trips.
func TestNoWaitAlone(t *testing.T) {
	t.Parallel()
	timed(t, func(m *keeperModel) {
		m.start(0)
		elapse(20 * fakeRoundTrip)
		if got := m.relays[0].begun(); len(got) != 5 {
			t.Errorf("at work with %q", got)
		}
		// And again after a stop and a start.
		m.do(keeperStep{op: "stop"})
		elapse(time.Second)
		m.start(0)
		elapse(20 * fakeRoundTrip)
		if got := m.relays[0].begun(); len(got) != 5 {
			t.Errorf("after a start, at work with %q", got)
		}
	})
}

// TestStopHandsOver: the units that a relay gives away when it stops work at another after a few
// round trips and the running deliveries.
func TestStopHandsOver(t *testing.T) {
	t.Parallel()
	timed(t, func(m *keeperModel) {
		m.start(0)
		m.start(1)
		elapse(3 * time.Second)
		if a, b := m.relays[0].begun(), m.relays[1].begun(); len(a)+len(b) != 5 || len(a) < 2 || len(b) < 2 {
			t.Fatalf("at work with %q and %q", a, b)
		}
		m.do(keeperStep{op: "stop", relay: 0})
		elapse(m.plan.slow + 30*fakeRoundTrip)
		if got := m.relays[1].begun(); len(got) != 5 {
			t.Errorf("at work with %q", got)
		}
	})
}

// TestKillIsTakenOver: within 2 s, and not before the former owner certainly starts nothing more.
func TestKillIsTakenOver(t *testing.T) {
	t.Parallel()
	for _, deaf := range []bool{false, true} {
		timed(t, func(m *keeperModel) {
			m.server.deaf = deaf
			for i := range modelRelays {
				m.start(i)
			}
			elapse(5 * time.Second)
			m.do(keeperStep{op: "kill", relay: 0})
			elapse(sureFor - time.Millisecond)
			if a, b := m.relays[1].begun(), m.relays[2].begun(); len(a)+len(b) > 4 {
				t.Errorf("at work with %q and %q too early", a, b)
			}
			elapse(time.Second)
			if a, b := m.relays[1].begun(), m.relays[2].begun(); len(a)+len(b) != 5 || len(a) < 2 || len(b) < 2 {
				t.Errorf("at work with %q and %q", a, b)
			}
		})
	}
}

// TestFrozenIsTakenOver: within 10 s, also by a relay that already had its share if the one that
// has less is frozen as well.
func TestFrozenIsTakenOver(t *testing.T) {
	t.Parallel()
	timed(t, func(m *keeperModel) {
		for i := range modelRelays {
			m.start(i)
		}
		elapse(5 * time.Second)
		m.do(keeperStep{op: "freeze", relay: 0})
		m.do(keeperStep{op: "freeze", relay: 1})
		elapse(10 * time.Second)
		if got := m.relays[2].begun(); len(got) != 5 {
			t.Errorf("at work with %q", got)
		}
		// They add nothing when they wake, and get their shares again.
		m.do(keeperStep{op: "thaw", relay: 0})
		m.do(keeperStep{op: "thaw", relay: 1})
		elapse(5 * time.Second)
		for _, r := range m.relays {
			if got := r.begun(); len(got) < 1 || len(got) > 2 {
				t.Errorf("%v is at work with %q", r, got)
			}
		}
	})
}

// TestStaleUnits: one relay is killed while the next in line is frozen.
func TestStaleUnits(t *testing.T) {
	t.Parallel()
	timed(t, func(m *keeperModel) {
		for i := range modelRelays {
			m.start(i)
		}
		elapse(5 * time.Second)
		order := []int{0, 1, 2}
		slices.SortFunc(order, func(a, b int) int { return len(m.relays[a].begun()) - len(m.relays[b].begun()) })
		frozen, third := m.relays[order[0]], m.relays[order[2]]
		m.do(keeperStep{op: "freeze", relay: order[0]})
		m.do(keeperStep{op: "kill", relay: order[1]})
		elapse(4 * time.Second) // the session of the frozen one is still there
		if a, b := frozen.begun(), third.begun(); len(a) != 1 || len(b) != 4 {
			t.Errorf("at work with %q, and the frozen one with %q", b, a)
		}
		if m.gained > 5+2+1+2 { // shared first, and what the killed one had
			t.Errorf("units were gained %d times", m.gained)
		}
		m.do(keeperStep{op: "thaw", relay: order[0]})
		elapse(5 * time.Second)
	})
}

// TestSureEnds: a second after the last proof was sent nothing starts, whatever the relay knows of
// its session by then.
func TestSureEnds(t *testing.T) {
	t.Parallel()
	timed(t, func(m *keeperModel) {
		m.start(0)
		elapse(time.Second)
		r := m.relays[0]
		if !r.keeper.Sure() {
			t.Fatal("not sure")
		}
		r.partition(true)
		elapse(sureFor)
		if r.keeper.Sure() {
			t.Error("sure without an answer for a second")
		}
		r.partition(false)
		elapse(answerWithin + longestReconnect)
		if !r.keeper.Sure() {
			t.Error("not sure though it is connected again")
		}
	})
}

// TestMovedPosition: a position that was moved by hand is taken over again, unchanged.
func TestMovedPosition(t *testing.T) {
	t.Parallel()
	timed(t, func(m *keeperModel) {
		m.start(0)
		elapse(time.Second)
		m.server.seek(place{destination: "b"})
		elapse(m.plan.slow + 30*fakeRoundTrip)
		r := m.relays[0]
		if got := r.begun(); len(got) != 5 {
			t.Errorf("at work with %q", got)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if p := r.units["b"].p; p.Epoch != 3 || !p.Clean {
			t.Errorf("the position is %+v", p)
		}
	})
}

// TestDoubtIsRemembered: a relay that loses its session while it waits for a former owner continues
// to wait, though it is itself the last owner.
func TestDoubtIsRemembered(t *testing.T) {
	t.Parallel()
	timed(t, func(m *keeperModel) {
		m.start(0)
		elapse(5 * time.Second)
		m.start(1)
		elapse(5 * time.Second)
		m.do(keeperStep{op: "cut off", relay: 0})
		m.relays[1].keeper.Look()
		elapse(20 * fakeRoundTrip) // the other has taken everything, and waits
		m.do(keeperStep{op: "terminate", relay: 1})
		elapse(proveEvery + firstReconnect + 20*fakeRoundTrip) // it has everything again
		if got := m.relays[1].begun(); len(got) > 3 {
			t.Errorf("at work with %q too early", got)
		}
		elapse(2 * time.Second)
		if got := m.relays[1].begun(); len(got) != 5 {
			t.Errorf("at work with %q", got)
		}
		m.do(keeperStep{op: "heal", relay: 0})
	})
}
