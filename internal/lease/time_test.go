package lease

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// These tests run in virtual time, on the fakes of the model.

// timed runs a test in virtual time, with relays that want a to d.
func timed(t *testing.T, f func(m *model)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newModel(plan{slow: modelDelivery})
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
	for name, u := range r.shards {
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
	timed(t, func(m *model) {
		m.start(0)
		elapse(20 * fakeRoundTrip)
		if got := m.relays[0].begun(); len(got) != 5 {
			t.Errorf("at work with %q", got)
		}
		// And again after a stop and a start.
		m.do(step{op: "stop"})
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
	timed(t, func(m *model) {
		m.start(0)
		m.start(1)
		elapse(3 * time.Second)
		if a, b := m.relays[0].begun(), m.relays[1].begun(); len(a)+len(b) != 5 || len(a) < 2 || len(b) < 2 {
			t.Fatalf("at work with %q and %q", a, b)
		}
		m.do(step{op: "stop", relay: 0})
		elapse(m.plan.slow + 30*fakeRoundTrip)
		if got := m.relays[1].begun(); len(got) != 5 {
			t.Errorf("at work with %q", got)
		}
	})
}

// TestKillIsTakenOver: within 2 s, and not before the term of the killed relay has ended.
func TestKillIsTakenOver(t *testing.T) {
	t.Parallel()
	for _, deaf := range []bool{false, true} {
		timed(t, func(m *model) {
			m.server.deaf = deaf
			for i := range modelRelays {
				m.start(i)
			}
			elapse(5 * time.Second)
			m.do(step{op: "kill", relay: 0})
			elapse(Term - renewEvery - fakeRoundTrip)
			if a, b := m.relays[1].begun(), m.relays[2].begun(); len(a)+len(b) > 4 {
				t.Errorf("at work with %q and %q too early", a, b)
			}
			elapse(2*time.Second - (Term - renewEvery - fakeRoundTrip))
			if a, b := m.relays[1].begun(), m.relays[2].begun(); len(a)+len(b) != 5 || len(a) < 2 || len(b) < 2 {
				t.Errorf("at work with %q and %q", a, b)
			}
		})
	}
}

// TestStartAfterAKill: a relay that starts does not wait for one that was killed before, and waits for one that was
// killed just now.
func TestStartAfterAKill(t *testing.T) {
	t.Parallel()
	timed(t, func(m *model) {
		m.start(0)
		elapse(5 * time.Second)
		m.do(step{op: "kill", relay: 0})
		elapse(Term + fakeRoundTrip)
		m.start(0)
		elapse(30 * fakeRoundTrip)
		if got := m.relays[0].begun(); len(got) != 5 {
			t.Errorf("at work with %q", got)
		}
		m.do(step{op: "kill", relay: 0})
		m.start(0)
		elapse(30 * fakeRoundTrip)
		if got := m.relays[0].begun(); len(got) != 0 {
			t.Errorf("at work with %q too early", got)
		}
		elapse(Term)
		if got := m.relays[0].begun(); len(got) != 5 {
			t.Errorf("at work with %q", got)
		}
	})
}

// TestFrozenIsTakenOver: within 2 s, also by a relay that already had its share if the one that
// has less is frozen as well.
func TestFrozenIsTakenOver(t *testing.T) {
	t.Parallel()
	timed(t, func(m *model) {
		for i := range modelRelays {
			m.start(i)
		}
		elapse(5 * time.Second)
		m.do(step{op: "freeze", relay: 0})
		m.do(step{op: "freeze", relay: 1})
		elapse(2 * time.Second)
		if got := m.relays[2].begun(); len(got) != 5 {
			t.Errorf("at work with %q", got)
		}
		// They add nothing when they wake, and get their shares again.
		m.do(step{op: "thaw", relay: 0})
		m.do(step{op: "thaw", relay: 1})
		elapse(5 * time.Second)
		for _, r := range m.relays {
			if got := r.begun(); len(got) < 1 || len(got) > 2 {
				t.Errorf("%v is at work with %q", r, got)
			}
		}
	})
}

// valid reports whether the relay may start something.
func (r *fakeRelay) valid() bool { return r.holder.term.valid() }

// TestValidEnds: once the term is nearly over nothing starts, whatever the relay knows of its connection by then; a
// renewal makes its leases valid again if nobody has removed it.
func TestValidEnds(t *testing.T) {
	t.Parallel()
	timed(t, func(m *model) {
		m.start(0)
		elapse(time.Second)
		r := m.relays[0]
		if !r.valid() {
			t.Fatal("not valid")
		}
		r.partition(true)
		elapse(Term - margin)
		if r.valid() {
			t.Error("valid without a renewal for a term")
		}
		r.partition(false)
		elapse(answerWithin + longestReconnect)
		if !r.valid() || m.gained != 5 {
			t.Errorf("valid: %t, shards were gained %d times", r.valid(), m.gained)
		}
	})
}

// TestLostConnection: a connection that is replaced in time costs no shard.
func TestLostConnection(t *testing.T) {
	t.Parallel()
	timed(t, func(m *model) {
		m.start(0)
		m.start(1)
		elapse(3 * time.Second)
		gained := m.gained
		m.do(step{op: "restart"})
		elapse(3 * time.Second)
		if m.gained != gained {
			t.Errorf("%d shards were taken again", m.gained-gained)
		}
	})
}

// TestMovedPosition: a position that was moved by hand is taken again.
func TestMovedPosition(t *testing.T) {
	t.Parallel()
	timed(t, func(m *model) {
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
		if l := r.shards["b"].lease; l.Epoch != 3 {
			t.Errorf("the lease is %+v", l)
		}
	})
}

// TestCrash: a relay takes its own shards at once, and those of one that is cut off, and may not know of the crash, a term
// later.
func TestCrash(t *testing.T) {
	t.Parallel()
	timed(t, func(m *model) {
		m.start(0)
		m.start(1)
		elapse(5 * time.Second)
		m.do(step{op: "cut", relay: 0})
		own := len(m.relays[1].begun())
		m.do(step{op: "crash"})
		elapse(renewEvery + longestReconnect/10 + m.plan.slow)
		if got := m.relays[1].begun(); len(got) != own {
			t.Errorf("at work with %q, want %d", got, own)
		}
		elapse(2 * Term)
		if got := m.relays[1].begun(); len(got) != 5 {
			t.Errorf("at work with %q", got)
		}
		m.do(step{op: "heal", relay: 0})
		elapse(5 * time.Second)
	})
}
