package replay

import "time"

// pace limits a replay to a rate.
type pace struct {
	rate float64   // events per second; 0: no limit
	left float64   // events that may go
	at   time.Time // of left
	due  time.Time // when the next burst may go
}

// paceEvery is how often events go at a rate; it determines the size of the bursts.
const paceEvery = 50 * time.Millisecond

// maxPace bounds a pause.
const maxPace = time.Hour

// allow returns how many of n events may go now. It returns 0 if it is too early for a burst.
func (p *pace) allow(now time.Time, n int) int {
	if p.rate == 0 || n == 0 {
		return n
	}

	bunch := max(1, p.rate*paceEvery.Seconds())

	if p.at.IsZero() {
		p.at = now
		p.left = 1
	}

	p.left = min(2*bunch, p.left+p.rate*now.Sub(p.at).Seconds())
	p.at = now
	if need := min(bunch, float64(n)) - p.left; need > 0 {
		p.due = now.Add(time.Duration(min(need/p.rate, maxPace.Seconds()) * float64(time.Second)))
		return 0
	}

	return int(min(float64(n), p.left)) // left may be more than an int
}

// sent records that events went.
func (p *pace) sent(n int) {
	if p.rate > 0 {
		p.left -= float64(n)
	}
}
