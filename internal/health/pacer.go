package health

import "time"

const (
	// shortestSlowing is the shortest first gap.
	shortestSlowing = 10 * time.Millisecond
	// longestGap bounds how long a throttling destination's recovery stays unnoticed.
	longestGap = 10 * time.Second
	// noGap is too short to matter: a shorter gap ends the throttling.
	noGap = 20 * time.Microsecond
	// burstTime bounds the tokens that a lane saves, so that it claims in batches and not event by event.
	burstTime = 20 * time.Millisecond
	// easing is the strength of a refusal relative to an answer, per call in flight: all calls in flight may be
	// refused at once. A larger value lowers the share of refusals, and slows the search for more capacity.
	easing = 5
)

// pacer puts a gap between the starts of deliveries after the destination requested fewer. A refusal doubles the gap,
// and answers shorten it a little, until it is gone.
//
// A destination that refuses at every pace, such as one with a used-up quota, recovers much faster: each answer
// halves the gap, down to twice the gap before the series of refusals. The zero value has no gap.
type pacer struct {
	gap    time.Duration // 0 for no gap
	steep  time.Duration // each answer halves a gap longer than this
	until  time.Time     // nothing begins before
	slowed time.Time     // time of the last refusal
	calm   bool          // answers have arrived since slowed
	tokens float64       // deliveries that may begin, as of at
	at     time.Time
}

func (p *pacer) on() bool { return p.gap > 0 }

// slow records a refusal of a call that began at the given time. after is the pause that the destination requests,
// and first is the first gap. slow reports whether this is the first refusal. A call from before the last refusal
// says nothing about the current gap.
func (p *pacer) slow(now, began time.Time, after, first time.Duration) (begins bool) {
	if until := now.Add(after); after > 0 && until.After(p.until) {
		p.until = until
	}

	switch {
	case !p.on():
		p.gap = min(max(first, shortestSlowing), longestGap)
		p.steep = p.gap
		begins = true
	case began.Before(p.slowed):
		return false
	default:
		p.gap = min(2*p.gap, longestGap)
		if p.calm {
			p.steep = p.gap
		}
	}

	p.slowed = now
	p.calm = false
	p.tokens = 0
	p.at = now

	return begins
}

// speedUp records n answers to calls that began at the given time, while running calls were in flight. It reports
// whether the gap is gone.
func (p *pacer) speedUp(now, began time.Time, n, running int) (gone bool) {
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

// burst returns how many deliveries may begin together, at least 1.
func (p *pacer) burst() float64 { return max(1, float64(burstTime)/float64(p.gap)) }

// fill adds the tokens for the time since the last fill.
func (p *pacer) fill(now time.Time) {
	if d := now.Sub(p.at); d > 0 {
		p.tokens = min(p.tokens+float64(d)/float64(p.gap), p.burst())
		p.at = now
	}
}

// ready returns how many deliveries may begin.
func (p *pacer) ready(now time.Time) int {
	if now.Before(p.until) {
		return 0
	}
	p.fill(now)
	return int(p.tokens)
}

// take records that n deliveries begin. A negative n takes back earlier ones.
func (p *pacer) take(n int) { p.tokens = min(p.tokens-float64(n), p.burst()) }

// wait returns how long until n deliveries may begin; 0 if they may now.
func (p *pacer) wait(now time.Time, n int) time.Duration {
	p.fill(now)
	missing := time.Duration(0)
	if int(p.tokens) < n { // rounded down, as in ready
		missing = time.Duration((float64(n)-p.tokens)*float64(p.gap)) + 1 // rounding must not end the wait too early
	}
	return max(0, missing, p.until.Sub(now))
}
