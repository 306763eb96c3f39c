package dispatch

import (
	"sync"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// Verdict is what became of a delivery.
type Verdict = verdict

// The verdicts.
const (
	// VerdictDelivered: the destination has acknowledged it.
	VerdictDelivered = delivered
	// VerdictFailed: to be tried again after a delay.
	VerdictFailed = failed
	// VerdictDead: given up.
	VerdictDead = dead
	// VerdictReleased: given back as if it had never been tried, because the destination is
	// down or throttles, or nothing more may begin.
	VerdictReleased = released
	// VerdictParked: not begun, because an earlier one of its aggregate has to be dealt with.
	VerdictParked = parked
	// VerdictAside: to be tried again after a delay, and no attempt counted.
	VerdictAside = aside
)

// Delivery is one event that a [Parcel] brings to a lane.
type Delivery struct {
	// Event has its Destination and Attempt set.
	Event *delivery.Event
	// Key is zero where order does not matter.
	Key Key
	// Failures counts the failed attempts so far.
	Failures int
	// Row says that the delivery is stored in outbox_deliveries.
	Row bool
	// Delayed says that the event was not to be available when it was written.
	Delayed bool
	// Leads says that nothing stored of its aggregate comes before it but what was
	// handed over earlier: it goes although the aggregate is blocked. Where it is given
	// back and handed over again that holds only if nothing has failed meanwhile.
	Leads bool

	since uint64 // how often something had failed when it was first handed over to lead
}

// Answer is what became of one delivery of a parcel.
type Answer struct {
	Delivery
	// Place is that of the delivery in the parcel, from 0.
	Place   int
	Verdict Verdict
	// Delay is how long to wait, for VerdictFailed and VerdictAside.
	Delay time.Duration
	// Class says whose fault it was, and Err what it was; zero if nothing went wrong.
	Class delivery.Class
	Err   error
	// Behind says that nothing of the aggregate is under way any more, and that rows
	// may wait behind this delivery: the aggregate is blocked until they have been dealt with.
	Behind bool
}

// Parcel is what an engine hands to a lane in one go, and where it finds the answers.
// The engine reuses it when nothing of it is under way.
type Parcel struct {
	jobs   []job
	events []Delivery
	order  *aggregates     // of whoever owned the lane when the parcel was handed over; nil where no order is kept
	sure   func() bool     // nothing begins while it returns false
	wake   func(last bool) // there is something to be taken; it must not block

	mu        sync.Mutex // a leaf; guards what follows
	done      []bool     // has its verdict
	left      int        // without a verdict
	delivered int        // acknowledged since the last Take
	each      bool       // every answer is one to be looked at
	answers   []Answer   // since the last Take
}

// job is one delivery of a parcel on its way through a lane, whose lock guards all but
// the first four fields.
type job struct {
	parcel  *Parcel
	work    int // index into parcel.events
	lane    *lane
	event   *delivery.Event
	agg     *aggregate // nil where order does not matter
	next    *job       // of its aggregate
	started bool       // a worker has taken it
	queued  bool       // it is in the lane's queue, or was
	cut     bool       // it is not to be delivered any more
}

// failures is how many failed attempts were counted before.
func (j *job) failures() int { return j.parcel.events[j.work].Failures }

// delayed reports whether the event was to be available later than it was written,
// where that is known.
func (j *job) delayed() bool { return j.parcel.events[j.work].Delayed }

// NewParcel returns an empty parcel. Before deliveries begin sure is asked
// whether they still may; wake is called after answers that have to be looked at: any
// but that a fresh event was delivered, and the last one. Neither may block.
func NewParcel(sure func() bool, wake func(last bool)) *Parcel {
	return &Parcel{sure: sure, wake: wake}
}

// Room returns memory for n deliveries, to be appended to and handed to Fill. The parcel
// is new, or was emptied.
func (p *Parcel) Room(n int) []Delivery {
	if cap(p.events) < n {
		p.events = make([]Delivery, 0, n)
	}
	return p.events[:0]
}

// Fill makes all the parcel's deliveries these. It is new, or was emptied.
func (p *Parcel) Fill(all []Delivery) {
	p.events = all
	if cap(p.jobs) < len(all) {
		p.jobs = make([]job, len(all))
		p.done = make([]bool, len(all))
	}
	p.jobs, p.done = p.jobs[:len(all)], p.done[:len(all)]
	p.left, p.delivered, p.each, p.answers = len(all), 0, false, nil
}

// Empty lets go of the deliveries, whose events are worth more memory than the
// parcel. Nothing of it may be under way, and all answers have been taken.
func (p *Parcel) Empty() {
	clear(p.jobs)
	clear(p.done)
	clear(p.events)
	p.events = p.events[:0]
}

// Len is the number of deliveries.
func (p *Parcel) Len() int { return len(p.events) }

// Take returns how many events were acknowledged since the last call, the
// answers that say more than that a fresh event was delivered, and how many
// deliveries have no verdict yet.
func (p *Parcel) Take() (acknowledged int, answers []Answer, left int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	acknowledged, answers = p.delivered, p.answers
	p.delivered, p.answers = 0, nil
	return acknowledged, answers, p.left
}

// Each makes every answer from now on one to be looked at, and returns what Take does
// and the places of the deliveries that have no verdict yet, in the order of Fill.
func (p *Parcel) Each() (answers []Answer, underWay []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	answers, p.answers, p.delivered, p.each = p.answers, nil, 0, true
	for i := range p.done {
		if !p.done[i] {
			underWay = append(underWay, i)
		}
	}
	return answers, underWay
}

// UnderWay calls f for each delivery that has no verdict, or one other than that it was
// delivered which has not been taken yet.
func (p *Parcel) UnderWay(f func(d *Delivery)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.answers {
		if p.answers[i].Verdict != delivered {
			f(&p.answers[i].Delivery)
		}
	}
	if p.left == 0 {
		return
	}
	for i := range p.done {
		if !p.done[i] {
			f(&p.events[i])
		}
	}
}

// answerParcels passes on what became of jobs, to each parcel in one go where its jobs
// follow one another. The lane's lock is held, so that whoever lets the lane go on knows
// of all that it has given back.
func answerParcels(jobs []*job, outs []outcome) {
	for len(jobs) > 0 {
		p, n := jobs[0].parcel, 1
		for n < len(jobs) && jobs[n].parcel == p {
			n++
		}
		p.answer(jobs[:n], outs[:n])
		jobs, outs = jobs[n:], outs[n:]
	}
}

// answer takes the verdicts on jobs of the parcel. The lane's lock is held.
func (p *Parcel) answer(jobs []*job, outs []outcome) {
	tell := false
	p.mu.Lock()
	for i, j := range jobs {
		tell = p.answerLocked(j, &outs[i]) || tell
	}
	last := p.left == 0
	p.mu.Unlock()
	if last || tell {
		p.wake(last)
	}
}

// answerLocked takes one verdict, and reports whether it is one to be looked at.
func (p *Parcel) answerLocked(j *job, out *outcome) (tell bool) {
	d := &p.events[j.work]
	p.done[j.work] = true
	p.left--
	if out.verdict == delivered {
		p.delivered++
		if !d.Row && !out.behind && !p.each {
			return false
		}
	}
	a := Answer{Delivery: *d, Place: j.work, Verdict: out.verdict, Delay: out.delay, Class: out.class, Err: out.err, Behind: out.behind}
	a.Failures = out.failures
	if out.verdict == delivered {
		a.Failures = d.Failures
	}
	p.answers = append(p.answers, a)
	return true
}
