package dispatch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/health"
	"github.com/notifyd/notifyd/internal/limit"
)

// TestTurnsOfProbes: after an outage stored deliveries get no capacity while it is the turn of a new one, which does.
func TestTurnsOfProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newTestLane(nil, testLane())
		defer l.drop()
		woken := 0
		l.Serve(func() { woken++ })
		pause := l.fault(time.Now(), delivery.Unavailable(errors.New("down")), false)
		if stored, fresh := l.Capacity(true), l.Capacity(false); stored != 0 || fresh != 0 {
			t.Errorf("capacity for %d stored and %d new deliveries during the pause", stored, fresh)
		}
		after(pause)
		if woken != 1 {
			t.Errorf("woken %d times after the pause", woken)
		}
		if stored, fresh := l.Capacity(true), l.Capacity(false); stored != 0 || fresh != health.Candidates || !l.Waits(true) || l.Waits(false) {
			t.Errorf("capacity for %d stored and %d new deliveries in the turn of new ones", stored, fresh)
		}
		after(turnGrace)
		if stored := l.Capacity(true); stored != health.Candidates || woken != 2 || l.Waits(true) {
			t.Errorf("capacity for %d stored deliveries after the turn of new ones, woken %d times", stored, woken)
		}
	})
}

// TestReserveForReplay: a replay leaves half of the lane to live deliveries, and waits until half of its own part is free.
func TestReserveForReplay(t *testing.T) {
	t.Parallel()
	l := newTestLane(nil, testLane())
	l.Own(func() {})
	most := l.replayLimitLocked()
	if most < 4 || most > l.sizeLocked()/2 {
		t.Fatalf("a replay may have %d of %d", most, l.sizeLocked())
	}
	for _, c := range []struct{ held, want int }{{0, most}, {most / 2, most - most/2}, {most/2 + 1, 0}, {most, 0}} {
		n := l.Reserve(Request{N: maxQueued, Replay: true, Held: c.held})
		if n != c.want {
			t.Errorf("with %d held: reserved %d, want %d", c.held, n, c.want)
		}
		l.Return(n)
	}
	live := l.Reserve(Request{N: maxQueued})
	l.Return(1) // not worth a read
	if n := l.Reserve(Request{N: most, Replay: true}); n != 0 || live <= 1 {
		t.Errorf("reserved %d behind %d live deliveries", n, live)
	}
}

// TestOrderOfRows: rows block their aggregate, and a new one counts as a failure.
func TestOrderOfRows(t *testing.T) {
	t.Parallel()
	l := newTestLane(nil, testLane())
	key := testKey(1, 1)
	if o := l.Order(key); o != (Order{}) {
		t.Errorf("before any engine owns the lane: %+v", o)
	}
	l.Own(func() {})
	for _, c := range []struct {
		rows     Rows
		blocked  bool
		failures uint64
	}{{SomeRows, true, 1}, {NewRow, true, 2}, {NoRows, false, 2}} {
		l.SetRows(key, c.rows)
		o := l.Order(key)
		if o.Blocked != c.blocked || o.Aggregates > 0 != c.blocked || o.Failures != c.failures || o.Busy || o.Stopped {
			t.Errorf("rows %d: %+v", c.rows, o)
		}
	}
}

// TestRefusalIsNews: a destination that is down already is reported again where the reason is news, and only there.
func TestRefusalIsNews(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newTestLane(nil, testLane())
		defer l.drop()
		o := &overheard{}
		l.observer = o
		for i, c := range []struct {
			repeat bool
			want   int
		}{{false, 1}, {false, 1}, {true, 2}} {
			if l.fault(time.Now(), delivery.Unavailable(errors.New("down")), c.repeat); len(o.kinds()) != c.want {
				t.Errorf("call %d: reported %v, want %d", i, o.kinds(), c.want)
			}
		}
	})
}

// TestWakesAfterTheLimit: an engine that was refused is woken when the rate limit opens, also if that was open at the refusal.
func TestWakesAfterTheLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := testLane()
		cfg.RateLimit, cfg.RateBurst = delivery.Rate{Events: 1, Per: time.Second}, 1
		l := newTestLane(delivery.HandlerFunc(takes(5*time.Millisecond)), cfg)
		defer l.drop()
		l.limiter = limit.New("a", limit.Rate{Rate: cfg.RateLimit, Burst: cfg.RateBurst}, false, func(_ context.Context, _ string, _ limit.Terms, asks []limit.Request) ([]limit.Reservation, error) {
			return []limit.Reservation{{N: asks[0].N, Lead: time.Second}}, nil
		})
		woken := 0
		l.Serve(func() { woken++ })
		if n := l.Reserve(Request{N: 2}); n != 1 {
			t.Fatalf("reserved %d", n)
		}
		all := []Delivery{{Event: &delivery.Event{ID: 1, Type: "x"}}}
		l.Admit(all, 0)
		p := NewBatch(func() bool { return true }, func(bool) {})
		p.Fill(all)
		l.Deliver(p, nil)
		after(time.Minute)
		if woken == 0 {
			t.Error("the engine was not woken")
		}
	})
}
