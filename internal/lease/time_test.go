package lease

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/internal/backoff"
)

// These tests run in virtual time, on the fakes of the model.

// timed runs a test in virtual time, with relays that want a to d.
func timed(t *testing.T, f func(m *model)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newModel(plan{slow: modelDelivery})
		for i := range m.plan.wants {
			m.plan.wants[i] = modelDestinations
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

// begun returns the shards for which a relay is working, in order.
func (r *fakeRelay) begun() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for at, u := range r.shards {
		u.mu.Lock()
		if !u.lastTime.IsZero() {
			names = append(names, at.String())
		}
		u.mu.Unlock()
	}
	slices.Sort(names)
	return names
}

// TestNoWaitAlone: a relay that is alone has all shards after a few round trips.
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

// TestStopHandsOver: the shards that a relay gives away when it stops work at another after a few
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

// TestValidEnds: once the term is nearly over no delivery starts, whatever the state of the connection. A renewal makes
// the leases valid again unless the relay was removed.
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
		elapse(answerWithin + backoff.LongestReconnect)
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
		m.server.seek(shardKey{destination: "b"})
		elapse(m.plan.slow + 30*fakeRoundTrip)
		r := m.relays[0]
		if got := r.begun(); len(got) != 5 {
			t.Errorf("at work with %q", got)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if l := r.shards[shardKey{destination: "b"}].lease; l.Epoch != 3 {
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
		elapse(renewEvery + backoff.LongestReconnect/10 + m.plan.slow)
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

// arranged runs a test with relays that want a and b, and start with two shards of a. An arrangement takes a while.
func arranged(t *testing.T, moves time.Duration, f func(m *model)) {
	t.Helper()
	timed(t, func(m *model) {
		m.plan.moves = moves
		for i := range m.plan.wants {
			m.plan.wants[i] = []string{"a", "b"}
			m.layouts[i]["a"] = "2 x"
		}
		f(m)
	})
}

// TestLongArrangement: relays that wait for the same destination do not interrupt each other.
func TestLongArrangement(t *testing.T) {
	t.Parallel()
	const moves = 5 * time.Second
	arranged(t, moves, func(m *model) {
		for i := range modelRelays {
			m.start(i)
		}
		elapse(moves + time.Second)
		var all []string
		for _, r := range m.relays {
			all = append(all, r.begun()...)
		}
		slices.Sort(all)
		if want := []string{"", "a", "a/1", "b"}; !slices.Equal(all, want) {
			t.Errorf("at work with %q, want %q", all, want)
		}
	})
}

// TestArrangementOfEarlierLife: what an arrangement finds out about an earlier life of the server costs no lease of this one.
func TestArrangementOfEarlierLife(t *testing.T) {
	t.Parallel()
	const moves = 5 * time.Second
	arranged(t, moves, func(m *model) {
		m.start(0)
		elapse(2 * time.Second)
		m.do(step{op: "crash"})
		elapse(2 * time.Second)
		before := m.relays[0].epoch(shardKey{destination: "b"})
		elapse(moves)
		if m.relays[0].epoch(shardKey{destination: "b"}) != before {
			t.Error("it lost its leases")
		}
		elapse(2 * moves)
		if got := m.relays[0].begun(); len(got) != 4 {
			t.Errorf("at work with %q", got)
		}
	})
}

// epoch returns the epoch in which the relay has a shard, 0 if it has not.
func (r *fakeRelay) epoch(at shardKey) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if u := r.shards[at]; u != nil {
		return u.lease.Epoch
	}
	return 0
}

// deny makes the database refuse arrangements of the relay.
func (r *fakeRelay) deny() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.denied = true
}

// TestRefusedArrangement: another relay arranges where one is not allowed to.
func TestRefusedArrangement(t *testing.T) {
	t.Parallel()
	arranged(t, 0, func(m *model) {
		m.start(2)
		elapse(time.Second)
		m.do(step{op: "stop", relay: 2})
		elapse(time.Second)
		m.layouts[0]["a"], m.layouts[1]["a"] = "3 y", "3 y"
		m.start(0)
		m.start(1)
		m.relays[0].deny()
		elapse(3 * time.Second)
		if a, b := m.relays[0].begun(), m.relays[1].begun(); len(a)+len(b) != 5 || !slices.Contains(slices.Concat(a, b), "a/2") {
			t.Errorf("at work with %q and %q", a, b)
		}
	})
}

// TestStopWhileArranging: the next relay arranges what one that stops has begun.
func TestStopWhileArranging(t *testing.T) {
	t.Parallel()
	const moves = 5 * time.Second
	arranged(t, moves, func(m *model) {
		m.start(0)
		elapse(2 * time.Second)
		r := m.relays[0]
		m.do(step{op: "stop", relay: 0})
		elapse(time.Second)
		select {
		case <-r.ended:
		default:
			t.Error("the stop waits for the arrangement")
		}
		if len(r.holder.refused) > 0 {
			t.Error("the end of the arrangement counts as a refusal")
		}
		m.start(1)
		elapse(moves + time.Second)
		if got := m.relays[1].begun(); len(got) != 4 {
			t.Errorf("at work with %q", got)
		}
	})
}

// TestLayoutWaits: a relay with another layout waits until all relays with the one in force have stopped, and for the term of
// one that was killed.
func TestLayoutWaits(t *testing.T) {
	t.Parallel()
	arranged(t, 0, func(m *model) {
		m.start(0)
		m.start(1)
		elapse(3 * time.Second)
		m.layouts[2]["a"] = ""
		m.start(2)
		elapse(5 * time.Second)
		r := m.relays[2]
		if got := r.begun(); len(got) != 1 || got[0] == "a" {
			t.Errorf("at work with %q", got)
		}
		m.do(step{op: "stop", relay: 0})
		m.do(step{op: "kill", relay: 1})
		elapse(Term - renewEvery - fakeRoundTrip)
		if got := r.begun(); slices.Contains(got, "a") {
			t.Errorf("at work with %q too early", got)
		}
		elapse(renewEvery + time.Second)
		if got, want := r.begun(), []string{"", "a", "b"}; !slices.Equal(got, want) {
			t.Errorf("at work with %q, want %q", got, want)
		}
	})
}
