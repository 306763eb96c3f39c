package dispatch

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// batch is one claim on its way through the lanes. It is ready when every job
// on a fast lane is answered; what is not answered by then, or by the end of
// the lock budget, goes on under a lease.
type batch struct {
	work  []Work
	jobs  []job
	plans []plan // one per work
	lanes []*lane
	ready chan struct{} // capacity 1: waiting has reached zero
	late  *leases       // takes the answers of leased jobs
	query *Query        // what was claimed
	fast  int           // jobs on fast lanes
	trail []uint64      // hashes of the lines that its jobs are in, sorted once it is handed out; see trail.go

	detached atomic.Bool // what is unanswered goes on under a lease
	adrift   atomic.Bool // which may not have been written
	lapses   uint64      // of leases when it was detached

	mu         sync.Mutex
	cond       sync.Cond         // unanswered has changed, once the batch is detached
	waiting    int               // jobs on fast lanes without an answer
	unanswered int               // jobs without an answer
	written    map[*lane][]*line // whose rows the settlement changes
	passedOver map[*lane]bool    // lanes that gave fresh events back
	behind     []*job            // leased ones whose answers come before those of the batch
}

// writes notes that the settlement changes rows of a line.
func (b *batch) writes(l *lane, ln *line) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.written == nil {
		b.written = make(map[*lane][]*line)
	}
	b.written[l] = append(b.written[l], ln)
}

// passes notes that a lane gives a fresh event back, and reports whether it is
// the first of it.
func (b *batch) passes(l *lane) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.passedOver[l] {
		return false
	}
	if b.passedOver == nil {
		b.passedOver = make(map[*lane]bool)
	}
	b.passedOver[l] = true
	return true
}

// lost returns the first event of each lane: if the settlement is lost, the lane
// has to meet it again before it takes what comes after it.
func (b *batch) lost() map[*lane]int64 {
	first := make(map[*lane]int64)
	for i := range b.jobs {
		j, w := &b.jobs[i], &b.work[b.jobs[i].work]
		if id, met := first[j.lane]; w.Fresh && (!met || w.Event.ID < id) {
			first[j.lane] = w.Event.ID
		}
	}
	return first
}

// doubt tells lines that the settlement may not have been written.
func (b *batch) doubt() {
	b.mu.Lock()
	written := maps.Clone(b.written) // a lane's lock is taken first
	b.mu.Unlock()
	for l, lines := range written {
		l.doubt(lines)
	}
}

// settled tells lanes and lines that the settlement has come to its end.
func (b *batch) settled() {
	b.mu.Lock()
	written, passed := b.written, b.passedOver
	b.written, b.passedOver = nil, nil
	b.mu.Unlock()
	for l, lines := range written {
		l.written(lines)
	}
	for l := range passed {
		l.passed()
	}
}

// lapsed reports whether what has not been begun with must be left alone: it goes on
// under leases, and others may have it by now.
func (b *batch) lapsed() bool {
	return b.detached.Load() && (b.adrift.Load() || b.lapses != b.late.lapses.Load() || !b.late.sure(time.Now()))
}

// decide reports whether a job goes on under a lease. If it does not, it never will:
// what becomes of it is known, and whoever asks answers it as soon as the lane's lock
// is free. Without that, its claim could lease it in between, and what was given back
// in its line would be in the table as something that is due.
func (b *batch) decide(j *job) (leased bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	j.decided = true
	return j.leased
}

// spare is the memory of a claimer's last batch, for its next one: a third of
// what an event would allocate. Events are not reused, handlers may keep them.
type spare struct {
	plans []plan
	jobs  []job
	trail []uint64
}

// give gives b a plan for each of n works, and room for as many jobs.
func (s *spare) give(b *batch, n int) {
	plans, jobs := s.plans, s.jobs
	b.trail = s.trail[:0]
	*s = spare{}
	if cap(plans) < n {
		plans = make([]plan, n)
	}
	if cap(jobs) < n {
		jobs = make([]job, 0, n)
	}
	b.plans, b.jobs = plans[:n], jobs[:0]
}

// keep takes the memory of b, none of whose jobs was leased: each is answered,
// and a worker does not touch a job after its answer. What they refer to is let go.
func (s *spare) keep(b *batch) {
	clear(b.plans)
	clear(b.jobs)
	s.plans, s.jobs, s.trail = b.plans, b.jobs, b.trail
	b.plans, b.jobs, b.trail = nil, nil, nil
}

// complete reports whether every job is answered.
func (b *batch) complete() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unanswered == 0
}

// overdue returns the lanes that keep the batch waiting.
func (b *batch) overdue() map[*lane]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	lanes := make(map[*lane]bool)
	for i := range b.jobs {
		if j := &b.jobs[i]; j.fast && !j.answered {
			lanes[j.lane] = true
		}
	}
	return lanes
}

// plan is what routing made of a work.
type plan struct {
	from, to int        // its jobs are batch.jobs[from:to]
	refused  []*lane    // lanes of its route that had no room
	state    EntryState // set if it cannot be delivered now: delayed or unrouted
}

// job is one delivery on its way through a lane. It is a claim's, with batch, or
// that of an engine that keeps positions, with parcel.
type job struct {
	batch   *batch
	parcel  *Parcel
	agg     *aggregate // of a parcel's job; nil where order does not matter. The lane's lock guards it and next.
	next    *job       // of its aggregate
	work    int        // index into batch.work, or parcel.events
	lane    *lane
	event   *Event
	fast    bool // the claim waits for it
	token   int64
	key     string // of its line, in rows; empty where order does not matter
	line    *line  // nil where order does not matter
	ahead   int    // jobs of its line before it when it was leased
	hold    *line  // while it is leased: the line that waits for its answer to be written
	started bool   // guarded by lane.mu, as are the next two
	queued  bool   // it is in the lane's queue, or was
	cut     bool   // it is not to be delivered any more

	answered bool    // guarded by batch.mu, as are the next three
	decided  bool    // see decide
	leased   bool    // answers go to batch.late
	out      outcome // valid once answered

	lease   leaseState // guarded by leases.mu, as are the next two
	lateOut *outcome   // the answer of a leased job
	wrote   bool       // it is written, or its claim's again
}

// failures is how many failed attempts were counted before.
func (j *job) failures() int {
	if j.parcel != nil {
		return j.parcel.events[j.work].Failures
	}
	return j.batch.work[j.work].Failures
}

// delayed reports whether the event was to be available later than it was written,
// where that is known.
func (j *job) delayed() bool {
	if j.parcel != nil {
		return j.parcel.events[j.work].Delayed
	}
	w := &j.batch.work[j.work]
	return !w.Fresh && w.Destination == ""
}

// lapsed reports whether the job must not begin any more, because others may have
// it by now.
func (j *job) lapsed() bool {
	if j.parcel != nil {
		return !j.parcel.sure()
	}
	return j.batch.lapsed()
}

// group stands for those jobs that must not be delivered once an earlier one of them
// has failed in the same call; nil where order does not matter.
func (j *job) group() any {
	switch {
	case j.line != nil:
		return j.line
	case j.agg != nil:
		return j.agg
	}
	return nil
}

// leaseState is how far the lease of a job has come.
type leaseState uint8

const (
	leaseUnknown leaseState = iota // being written, or none
	leaseHeld
	leaseUnsure // its transaction failed, or was not heard of again
)

// answer takes the outcome of a job. Its worker calls it, once.
func (b *batch) answer(j *job, out outcome) {
	b.mu.Lock()
	if j.leased {
		b.mu.Unlock()
		b.late.answered(j, out)
		return
	}
	j.out, j.answered = out, true
	b.unanswered--
	if j.fast {
		b.waiting--
		if b.waiting == 0 {
			b.ready <- struct{}{} // never blocks: it happens once
		}
	}
	if b.detached.Load() {
		b.cond.Broadcast()
	}
	b.mu.Unlock()
}

// detach ends the waiting: jobs that no worker has started are withdrawn, what
// is running is leased. It returns the leased jobs; all others are answered.
func (b *batch) detach(token func() int64) (leased []*job) {
	b.lapses = b.late.lapses.Load()
	b.detached.Store(true)
	for _, l := range b.lanes {
		gone, running := l.detach(b, token)
		answerAll(gone)
		leased = append(leased, running...)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cond.L = &b.mu
	for b.unanswered > len(leased) {
		b.cond.Wait() // for those who had decided before
	}
	return leased
}

// lease hands a job over to leases, unless what becomes of it is known.
func (b *batch) lease(j *job, token func() int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if j.answered || j.decided {
		return false
	}
	j.leased, j.token = true, token()
	return true
}

// settlement collects what became of the batch, once it is detached or all of
// it is answered. left are the indexes of works to be given back untouched.
func (b *batch) settlement() (s *Settlement, left []int) {
	s = &Settlement{Done: make([]int64, 0, len(b.work))}
	for i := range b.work {
		w, p := &b.work[i], &b.plans[i]
		switch {
		case w.Orphan:
			s.Remove = append(s.Remove, Ref{w.Event.ID, w.Destination})
		case w.Withheld:
			left = append(left, i)
		case p.state != "":
			if w.Fresh {
				s.Deferred = append(s.Deferred, w.Event.ID)
			}
			s.Put = append(s.Put, Entry{Ref: Ref{EventID: w.Event.ID}, EventType: w.Event.Type, State: p.state, Delay: w.Delay})
		// A due delivery without a destination is split up in any case: left
		// alone, it would be claimed without end while other lanes have room.
		case !b.touched(p) && (w.Fresh || w.Destination != ""):
			left = append(left, i)
		default:
			b.settleWork(s, w, p)
		}
	}
	return s, left
}

// touched reports whether any job of the work was more than given back.
func (b *batch) touched(p *plan) bool {
	for i := p.from; i < p.to; i++ {
		if j := &b.jobs[i]; j.leased || j.out.verdict != released {
			return true
		}
	}
	return false
}

func (b *batch) settleWork(s *Settlement, w *Work, p *plan) {
	first := len(s.Put)
	open := false
	for i := p.from; i < p.to; i++ {
		j := &b.jobs[i]
		if !j.leased && j.out.verdict == delivered {
			continue
		}
		e := entryOf(j)
		if j.line != nil && !j.leased && j.out.verdict == released {
			l := j.lane // it was to be given back, but others have the event already
			l.store(b, j.key, w.Event.ID)
		}
		open = open || e.State != EntryDead
		s.Put = append(s.Put, e)
	}
	for _, l := range p.refused {
		e := Entry{Ref: Ref{w.Event.ID, l.name}, EventType: w.Event.Type, State: EntryRetry}
		if e.Key = l.keyOf(&w.Event); e.Key != "" {
			e.State = EntryParked
			l.store(b, e.Key, w.Event.ID)
		}
		s.Put = append(s.Put, e)
		open = true
	}
	rest := len(s.Put) - first
	switch {
	case !w.Fresh && w.Destination != "" && rest > 0: // Put replaces the row
	case !w.Fresh:
		s.Remove = append(s.Remove, Ref{w.Event.ID, w.Destination})
	case open:
		s.Deferred = append(s.Deferred, w.Event.ID)
	case rest > 0:
		s.Buried = append(s.Buried, w.Event.ID)
	default:
		s.Done = append(s.Done, w.Event.ID)
	}
}

// entryOf returns the row that a job leaves behind, other than a delivered one.
func entryOf(j *job) Entry {
	w := &j.batch.work[j.work]
	e := Entry{Ref: Ref{w.Event.ID, j.lane.name}, EventType: w.Event.Type, Key: j.key, Failures: w.Failures, Token: j.token}
	if j.leased && !j.answered {
		e.State = EntryRunning
		return e
	}
	e.State, e.Failures, e.Delay = EntryRetry, j.out.failures, j.out.delay
	switch {
	case j.out.verdict == dead:
		e.State = EntryDead
	case j.out.verdict == parked, j.out.verdict == released && j.key != "" && !j.leased:
		e.State = EntryParked
	}
	if j.out.err != nil {
		e.Class, e.Err = j.out.class.String(), j.out.err.Error()
	}
	return e
}
