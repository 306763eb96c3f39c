package dispatch

import (
	"time"
)

// Settlements keep the order of deliveries. Of two events of an aggregate the
// second one may begin as soon as the first one is delivered, and be claimed by
// somebody else, who is done sooner. If it were settled first, and the relay died
// then, the first one would be delivered again, and for good after the second:
// whoever keeps the last state that it heard of would keep the wrong one. So a
// claim is settled after those that were handed out before it and have a line in
// common with it, and after the late answers that its own waited for. What a crash
// has delivered again is then always the end of what an aggregate has got.

// turnPatience bounds the wait. It is far below the time after which the database
// takes an idle transaction for a dead one, and far above what a settlement takes:
// only a claim that was lost with its connection takes longer, and what it had
// claimed may meanwhile be in hands that wait for it.
const turnPatience = time.Second

// openClaim is a claim that is not settled.
type openClaim struct {
	work  []Work
	trail []uint64 // hashes of the lines that it has jobs in, ascending
}

// follows notes that answers of the batch come after that of a leased job.
func (b *batch) follows(j *job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.behind = append(b.behind, j)
}

// turnOf returns what waits until a batch may be settled, nil if it may be now. hurried
// says that its claimer was called for, and has to send somebody else if it cannot come.
func (d *Dispatcher) turnOf(b *batch, turn uint64, hurried bool) func() {
	if len(b.trail) == 0 {
		return nil
	}
	b.mu.Lock()
	behind := b.behind
	b.mu.Unlock()
	if len(behind) == 0 && !d.sched.crossed(turn, b.trail) {
		return nil
	}
	return func() {
		d.sched.awaitEarlier(turn, b.trail, hurried)
		d.leases.awaitWritten(behind)
	}
}

// leaves takes word of the lines that a claim has jobs in.
func (s *scheduler) leaves(turn uint64, trail []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	claim := s.open[turn]
	claim.trail = trail
	s.open[turn] = claim
}

// awaitEarlier waits until no claim of an earlier turn is open that has a line in
// common with this one. Turns are taken one after the other, so nobody waits in a circle.
func (s *scheduler) awaitEarlier(turn uint64, trail []uint64, hurried bool) { //nolint:revive // see turnOf
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.crossedLocked(turn, trail) {
		return
	}
	if hurried {
		select {
		case s.hurry <- struct{}{}:
		default:
		}
	}
	end := time.Now().Add(turnPatience)
	timer := time.AfterFunc(turnPatience, s.turnPoke)
	defer timer.Stop()
	for s.crossedLocked(turn, trail) && time.Now().Before(end) {
		s.turnCond.Wait()
	}
}

func (s *scheduler) turnPoke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turnCond.Broadcast()
}

// crossed reports whether awaitEarlier would wait.
func (s *scheduler) crossed(turn uint64, trail []uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.crossedLocked(turn, trail)
}

func (s *scheduler) crossedLocked(turn uint64, trail []uint64) bool {
	for earlier, claim := range s.open {
		if earlier < turn && meet(claim.trail, trail) {
			return true
		}
	}
	return false
}

// meet reports whether two ascending lists have something in common.
func meet(a, b []uint64) bool {
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0] < b[0]:
			a = a[1:]
		case a[0] > b[0]:
			b = b[1:]
		default:
			return true
		}
	}
	return false
}

// wrote takes word that answers are written.
func (ls *leases) wrote(results []lateResult) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for i := range results {
		results[i].job.wrote = true
	}
	ls.cond.Broadcast()
}

// awaitWritten waits until the answers of leased jobs are written.
func (ls *leases) awaitWritten(jobs []*job) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	end := time.Now().Add(turnPatience)
	timer := time.AfterFunc(turnPatience, ls.poke)
	defer timer.Stop()
	for len(jobs) > 0 && time.Now().Before(end) {
		if jobs[0].wrote {
			jobs = jobs[1:]
			continue
		}
		ls.cond.Wait()
	}
}

func (ls *leases) poke() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.cond.Broadcast()
}
