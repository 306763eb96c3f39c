package health

import (
	"testing"
	"time"
)

func TestPacerSlows(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var p pacer
	if p.on() || p.speedUp(now, now, 5, 1) {
		t.Fatal("the zero pacer slows deliveries")
	}
	if !p.slow(now, now, 0, time.Microsecond) || p.gap != shortestSlowing {
		t.Fatalf("the first refusal: %+v", p)
	}
	if p.slow(now.Add(time.Millisecond), now.Add(-time.Millisecond), 0, 0) || p.gap != shortestSlowing {
		t.Errorf("a call that began before that slows it again: %+v", p)
	}
	for range 20 {
		now = now.Add(p.gap)
		was := p.gap
		if p.slow(now, now, 0, 0) || p.gap != min(2*was, longestGap) {
			t.Fatalf("from %v to %v", was, p.gap)
		}
	}
	if p = (pacer{}); !p.slow(now, now, 0, time.Hour) || p.gap != longestGap {
		t.Errorf("the first gap is bounded: %v", p.gap)
	}
}

// TestPacerEases: answers undo a slowing bit by bit, slower with more calls in flight, and fast in
// a series.
func TestPacerEases(t *testing.T) {
	t.Parallel()
	now := time.Now()
	answers := func(p *pacer, running int, to time.Duration) (n int) {
		for p.gap > to {
			n++
			p.speedUp(now, now, 1, running)
		}
		return n
	}
	slowed := func() *pacer {
		var p pacer
		p.slow(now.Add(-2), now.Add(-2), 0, time.Second)
		p.speedUp(now.Add(-2), now.Add(-2), 1, 1e9)
		p.slow(now.Add(-1), now.Add(-1), 0, 0)
		return &p
	}
	if n := answers(slowed(), 1, time.Second); n < 3 || n > 5 {
		t.Errorf("%d answers, one at a time, undo a slowing", n)
	}
	// A refusal may be one of eight calls in flight: fewer than one in three of all answers may be
	// refusals.
	if n := answers(slowed(), 8, time.Second); n < 2*8 || n > 50 {
		t.Errorf("%d answers, eight at a time, undo a slowing", n)
	}
	var p pacer
	for range 11 { // a quota that is used up
		p.slow(now, now, 0, 0)
	}
	if p.gap != longestGap {
		t.Fatalf("the gap is %v", p.gap)
	}
	if n := answers(&p, 1, 2*shortestSlowing); n > 12 {
		t.Errorf("%d answers until it is as fast again as when the quota was used up", n)
	}
	if n := answers(&p, 1, 0); n > 100 || p.on() || p != (pacer{}) {
		t.Errorf("%d answers later: %+v", n, p)
	}
	early := slowed()
	if was := early.gap; early.speedUp(now, now.Add(-time.Second), 1, 1) || early.gap != was {
		t.Error("a call that began before the slowing eases it")
	}
}

// TestPacerTokens: the pace follows the gap, in small bunches.
func TestPacerTokens(t *testing.T) {
	t.Parallel()
	for _, gap := range []time.Duration{time.Millisecond, 7 * time.Millisecond, time.Second} {
		now := time.Now()
		p := pacer{gap: gap, at: now}
		begin, n := now, 0
		for n < 1000 {
			want := max(1, int(p.burst()/2))
			d := p.wait(now, want)
			if d > 0 && p.ready(now.Add(d-2)) >= want {
				t.Fatalf("gap %v: there is room before the end of the wait", gap)
			}
			now = now.Add(d)
			got := p.ready(now)
			if got < want || got > int(burstTime/gap)+1 {
				t.Fatalf("gap %v: room for %d after the wait for %d", gap, got, want)
			}
			p.take(got)
			n += got
		}
		if took, want := now.Sub(begin), time.Duration(n)*gap; took < want-burstTime-gap || took > want+gap {
			t.Errorf("gap %v: %d took %v, want %v", gap, n, took, want)
		}
		p.ready(now.Add(time.Hour))
		if p.take(-5); p.tokens > p.burst() {
			t.Errorf("gap %v: %v saved up", gap, p.tokens)
		}
	}
}

func TestPacerWaits(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var p pacer
	p.slow(now, now, time.Minute, 0)
	if n, d := p.ready(now.Add(time.Minute-1)), p.wait(now, 1); n != 0 || d != time.Minute {
		t.Errorf("room for %d, and %v to wait", n, d)
	}
	if p.ready(now.Add(time.Minute)) == 0 {
		t.Error("no room when the time is over")
	}
	p.slow(now, now, time.Second, 0)
	if p.ready(now.Add(time.Minute-1)) != 0 {
		t.Error("a shorter wait has ended the longer one")
	}
}

// Rounding must not leave a lane without room and without a timer.
func TestPacerWaitsWhereThereIsNoRoom(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	p := &pacer{gap: 10 * time.Millisecond, at: begin}
	for i := range 10 {
		now := begin.Add(time.Duration(i+1) * time.Millisecond)
		if room, wait := p.ready(now), p.wait(now, 1); (room < 1) != (wait > 0) {
			t.Errorf("after %v there is room for %d, and %v to wait for one", now.Sub(begin), room, wait)
		}
	}
}
