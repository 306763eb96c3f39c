package health

import (
	"errors"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/login"
	"github.com/notifyd/notifyd/observe"
)

// longestPause is the default.
var longestPause = testLane().LongestPause

func TestBreaker(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var b breaker
	if ramps, closes := b.answered(now, 1, 8); !b.closed() || b.open() || b.ramping() || ramps || closes || b.calm(now) {
		t.Fatal("the zero breaker is not closed")
	}
	pause, opened, longer := b.trip(now, now, paceAfter(nil, longestPause), false)
	if !opened || !longer || pause < firstPause/2 || pause > 2*firstPause {
		t.Fatalf("first fault: %v %t %t", pause, opened, longer)
	}
	if b.mayProbe(now.Add(pause-1)) || !b.mayProbe(now.Add(pause)) {
		t.Error("the pause differs from the returned one")
	}
	rest, opened, longer := b.trip(now.Add(pause/2), now, paceAfter(nil, longestPause), false)
	if opened || longer || rest != pause-pause/2 {
		t.Errorf("a fault within the pause: %v %t %t", rest, opened, longer)
	}
	for range 150 {
		now = now.Add(pause)
		if pause, opened, longer = b.trip(now, now, paceAfter(nil, longestPause), false); opened || !longer || pause > longestPause {
			t.Fatalf("a probe failed: %v %t %t", pause, opened, longer)
		}
	}
	if pause < longestPause/3 {
		t.Errorf("after 150 faults the pause is %v", pause)
	}
}

// TestBreakerRamps: each round of successes doubles the allowed calls, and the breaker closes when it allows the full
// capacity.
func TestBreakerRamps(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var b breaker
	b.trip(now, now, paceAfter(nil, longestPause), false)
	if ramps, closes := b.answered(now, 1, 20); !ramps || closes || b.allowed != 1 || b.open() {
		t.Fatalf("the answer to a probe: %t %t, %+v", ramps, closes, b)
	}
	for _, allowed := range []int{1, 2, 4, 8, 16} {
		for n := range allowed {
			if b.allowed != allowed {
				t.Fatalf("after %d answers of a round of %d, %d are allowed", n, allowed, b.allowed)
			}
			ramps, closes := b.answered(now, 1, 20)
			if ramps || closes != (n == 15) {
				t.Fatalf("answer %d of a round of %d: %t %t", n, allowed, ramps, closes)
			}
		}
	}
	if !b.closed() {
		t.Errorf("all that there is room for is allowed, and it is not closed: %+v", b)
	}
	b.trip(now, now, paceAfter(nil, longestPause), false)
	b.answered(now, 1, 100)
	if b.answered(now, 7, 100); b.allowed != 8 || b.answers != 0 {
		t.Errorf("seven answers at once are three rounds: %+v", b)
	}
	b.trip(now, now, paceAfter(nil, longestPause), false)
	if _, closes := b.answered(now, 1, 1); !closes {
		t.Error("a lane that has room for one only is well with the first answer")
	}
}

// TestBreakerFallsBack: a destination that fails again as it recovers goes back to short pauses, because it has just
// answered. Pauses grow with the time without an answer.
func TestBreakerFallsBack(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var b breaker
	for round := range 30 {
		for fault := range 3 {
			pause, opened, longer := b.trip(now, now, paceAfter(nil, longestPause), false)
			if opened != (round+fault == 0) || !longer || b.allowed != 0 {
				t.Fatalf("fault %d: %t %t %+v", round, opened, longer, b)
			}
			if pause > 2*firstPause {
				t.Fatalf("fault %d: a pause of %v", round, pause)
			}
			now = now.Add(pause)
		}

		before := now.Add(-time.Second)
		b.answered(now, 1, 100)
		allowed := b.allowed
		if _, _, longer := b.trip(now, before, paceAfter(nil, longestPause), false); longer || b.allowed != allowed {
			t.Fatalf("the fault of a call from before the ramp opens it: %+v", b)
		}
	}

	for _, silence := range []time.Duration{10 * time.Second, time.Minute, 2 * time.Minute} {
		b = breaker{}
		b.trip(now, now, paceAfter(nil, longestPause), false)
		pause, _, _ := b.trip(now.Add(silence), now.Add(silence), paceAfter(nil, longestPause), false)
		if want := pauseAfter(silence); pause < want/2 || pause > want*3/2 {
			t.Errorf("after %v without an answer the pause is %v", silence, pause)
		}
	}
}

// TestBreakerTurns: new and stored deliveries take turns as probes, three new ones for a stored one. Neither kind waits for long while the other has no probes.
func TestBreakerTurns(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var b breaker
	if b.storedWait(now) || b.newWait(now) {
		t.Fatal("deliveries wait, and the destination is well")
	}
	known := false
	for i := range 12 {
		pause, _, _ := b.trip(now, now, paceAfter(nil, longestPause), known)
		now = now.Add(pause)
		newFirst := i%(newProbes+1) < newProbes
		if b.storedWait(now) != newFirst || b.storedWait(now.Add(turnGrace)) {
			t.Errorf("fault %d: %+v", i, b)
		}
		known = !newFirst
	}
	b.trip(now, now, paceAfter(nil, longestPause), true)
	b.holds(now, maxHeld)
	if b.storedWait(b.until) || !b.newWait(b.until) {
		t.Errorf("so many were held back that it is the turn of stored deliveries: %+v", b)
	}
	if b.answered(now, 1, 100); b.newWait(now) {
		t.Error("the destination answers, and deliveries wait")
	}
}

// TestBreakerCalm: a ramp ends where no more events come than it allows.
func TestBreakerCalm(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var b breaker
	b.trip(now, now, paceAfter(nil, longestPause), false)
	b.answered(now, 1, 100)
	b.pressed = true
	if b.calm(now.Add(rampCalm-1)) || !b.ramping() {
		t.Fatal("too early")
	}
	if b.calm(now.Add(rampCalm)) || !b.ramping() {
		t.Fatal("more were there than it allowed")
	}
	if b.calm(now.Add(2*rampCalm-1)) || !b.calm(now.Add(2*rampCalm)) || !b.closed() {
		t.Fatalf("the ramp was below its limit for %v: %+v", rampCalm, b)
	}
	b.trip(now, now, paceAfter(nil, longestPause), false)
	if b.calm(now.Add(time.Hour)) || !b.open() {
		t.Error("time alone closes a breaker that is open")
	}
}

func TestBreakerStateWords(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for i, s := range observe.BreakerStates() {
		if int(s) != i || seen[s.String()] {
			t.Errorf("state %d is %q", i, s)
		}
		seen[s.String()] = true
	}
	if s := observe.BreakerState(99).String(); s != "state(99)" {
		t.Errorf("%q", s)
	}
}

// TestRefusedCredentials: the pauses of a destination that refuses our credentials keep its logins few: five or six
// in the first half hour. Any other fault goes back to the short pauses.
func TestRefusedCredentials(t *testing.T) {
	t.Parallel()
	now := time.Now()
	begin, refused := now, errors.New("401")
	var b breaker
	slow := paceAfter(delivery.Unauthorized(refused), longestPause)
	for n := 1; now.Sub(begin) < 30*time.Minute; n++ {
		pause, _, longer := b.trip(now, now, slow, false)
		if !longer || pause < login.First/2 || pause > login.Longest || n > 9 {
			t.Fatalf("login %d is followed by a pause of %v", n, pause)
		}
		now = now.Add(pause)
	}
	if pause, _, _ := b.trip(now, now, paceAfter(delivery.Unavailable(refused), longestPause), false); pause > longestPause {
		t.Errorf("another fault is followed by a pause of %v", pause)
	}
}
