package dispatch

import "time"

// Progress shows whether a lane goes on.
type Progress struct {
	// Answers counts the deliveries that have got a verdict, of any kind, begun or not.
	Answers uint64
	// Well says that nothing but a lack of work, or of room, keeps the lane from beginning deliveries: nobody has
	// paused it, and its destination is neither down nor recovering nor throttled.
	Well bool
	// Within bounds the calls that are under way, from their beginning until they are given up; 0 if there is none.
	Within time.Duration
}

func (l *lane) progress() (p Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.figures.total {
		p.Answers += n
	}
	passed := &l.figures.passings
	p.Answers += passed.refused.Load() + passed.withdrawn.Load() + passed.withheld.Load() + passed.limited.Load()
	p.Well = !l.stopped && !Limits{l}.waitLocked(time.Now()) && !l.restingLocked() && l.ease.breaker.closed() && !l.ease.pacer.on()
	if l.running > 0 {
		p.Within = l.crew.patience() + patrolAgain
	}
	return p
}
