package dispatch

import "time"

const (
	// shortestSlowing is the least that the first slowing puts between two deliveries.
	shortestSlowing = 10 * time.Millisecond
	// longestGap bounds how long a destination that takes more again goes unnoticed.
	longestGap = 10 * time.Second
	// noGap is too short to slow anything: a lane that is eased to there is free.
	noGap = 20 * time.Microsecond
	// longestThrottle bounds what a destination may ask for with one answer.
	longestThrottle = time.Hour
	// burstTime is how much of its pace a lane may save up, so that it claims in
	// bunches and not event by event.
	burstTime = 20 * time.Millisecond
	// easing is how much weaker an answer is than a refusal, for each call that
	// is under way: those may all be refused at once. The more it is, the smaller
	// the share of refusals, and the longer it takes to find out about more room.
	easing = 5
)

// pacer puts a gap between the beginnings of deliveries, because the destination
// has asked for fewer. A refusal doubles the gap, and answers take a little off
// it, until it is gone. A destination that refuses at every pace, as one does
// whose quota is used up, is found well again much faster than it would be so: down to
// twice the gap that the row of refusals began with, each answer halves it.
// Its zero value lets everything through. The lane's lock guards it.
type pacer struct {
	gap    time.Duration // 0 while there is none
	steep  time.Duration // a longer gap than this is halved by each answer
	until  time.Time     // nothing begins before
	slowed time.Time     // when it was last slowed
	calm   bool          // answers have come since
	tokens float64       // for so many deliveries, at the time below
	at     time.Time
}

func (p *pacer) on() bool { return p.gap > 0 }

// slow takes a refusal of a call that began at the given time, with the time for
// which the destination wants to hear nothing, and the gap to begin with. It
// reports whether this is the first one. What began before the last slowing
// says nothing about the gap there is now.
func (p *pacer) slow(now, began time.Time, after, first time.Duration) (begins bool) {
	if until := now.Add(min(after, longestThrottle)); after > 0 && until.After(p.until) {
		p.until = until
	}
	switch {
	case !p.on():
		p.gap = min(max(first, shortestSlowing), longestGap)
		p.steep, begins = p.gap, true
	case began.Before(p.slowed):
		return false
	default:
		p.gap = min(2*p.gap, longestGap)
		if p.calm {
			p.steep = p.gap
		}
	}
	p.slowed, p.calm = now, false
	p.tokens, p.at = 0, now
	return begins
}

// ease takes n answers to calls that began at the given time, while running
// calls were under way. It reports whether the gap is gone.
func (p *pacer) ease(now, began time.Time, n, running int) (gone bool) {
	if !p.on() || n == 0 || began.Before(p.slowed) {
		return false
	}
	p.fill(now)
	p.calm = true
	for range n {
		if p.gap > p.steep {
			p.gap = max(p.gap/2, p.steep)
		} else {
			p.gap -= p.gap / time.Duration(1+easing*max(1, running))
		}
	}
	if p.gap >= noGap {
		return false
	}
	*p = pacer{}
	return true
}

// burst is how many deliveries may begin together, at least 1.
func (p *pacer) burst() float64 { return max(1, float64(burstTime)/float64(p.gap)) }

// fill adds what the time since it was last filled is worth.
func (p *pacer) fill(now time.Time) {
	if d := now.Sub(p.at); d > 0 {
		p.tokens = min(p.tokens+float64(d)/float64(p.gap), p.burst())
		p.at = now
	}
}

// room returns how many deliveries may begin.
func (p *pacer) room(now time.Time) int {
	if now.Before(p.until) {
		return 0
	}
	p.fill(now)
	return int(p.tokens)
}

// take notes that n deliveries begin, or that -n do not after all.
func (p *pacer) take(n int) { p.tokens = min(p.tokens-float64(n), p.burst()) }

// wait returns how long it takes until there is room for n, 0 if there is.
func (p *pacer) wait(now time.Time, n int) time.Duration {
	p.fill(now)
	missing := time.Duration(0)
	if int(p.tokens) < n { // as room says
		missing = time.Duration((float64(n)-p.tokens)*float64(p.gap)) + 1 // rounding must not end it a little too early
	}
	return max(0, missing, p.until.Sub(now))
}
