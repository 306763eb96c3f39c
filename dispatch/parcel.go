package dispatch

import (
	"sync"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/order"
)

// Delivery is one event that a [Parcel] brings to a lane.
type Delivery struct {
	// Event has its Destination and Attempt set.
	Event *delivery.Event
	// Key is zero where order does not matter.
	Key Key
	// Failures counts the failed attempts so far.
	Failures int
	// Refused is why the event must not be delivered, nil for nearly all: the lane buries it with this
	// error, without a call of the handler.
	Refused error
	// Row says that the delivery is stored in outbox_deliveries.
	Row bool
	// Delayed says that the event was not yet available when it was written.
	Delayed bool
	// Leads says that no stored delivery of its aggregate comes before this one, except those that
	// were handed over earlier: it goes although the aggregate is blocked. It holds only if none
	// of the aggregate has failed since the stored deliveries were read, see Since.
	Leads bool
	// Since is [Order.Failures] from before that read; 0 is the first time that the delivery was handed over.
	Since uint64
	// Expires is when the event is too old to be delivered, by this relay's clock; zero for never. See
	// Destination.Expires. It counts only in a lane with ExpiresAfter: other lanes do not look at it.
	Expires time.Time
	// Waited says that the delivery was stored to wait for its turn, as one that a rate limit held back.
	Waited bool
}

// late reports whether the event is too old to be delivered.
func (d *Delivery) late(now time.Time) bool { return !d.Expires.IsZero() && !now.Before(d.Expires) }

// entry describes the delivery to the queues that it joins. The first call sets Since: other
// deliveries of the aggregate may fail before this one goes.
func (d *Delivery) entry(q *queues) order.Entry {
	if d.Leads && d.Since == 0 {
		d.Since = q.Failures()
	}
	return order.Entry{Key: &d.Key, Leads: d.Leads, Since: d.Since, Stored: d.Row}
}

// Answer is the outcome of one delivery of a parcel.
type Answer struct {
	Delivery
	// Place is the index of the delivery in the parcel, from 0.
	Place   int
	Verdict Verdict
	// Delay is how long to wait, for VerdictFailed and VerdictAside.
	Delay time.Duration
	// Class says whose fault a failure was, and Err is its error; both are zero without a failure.
	Class delivery.Class
	Err   error
	// Behind says that no delivery of the aggregate is in flight any more, and that rows may wait
	// behind this one: the aggregate is blocked until the engine has dealt with them.
	Behind bool
}

// Parcel is a set of deliveries that an engine hands to a lane at once, and the place where it
// finds the answers. The engine reuses the parcel when none of its deliveries is in flight.
type Parcel struct {
	jobs   []job
	events []Delivery
	order  *queues         // of the engine that owned the lane when the parcel was handed over; nil where no order is kept
	sure   func() bool     // no delivery begins while it returns false
	wake   func(last bool) // there are answers to take; it must not block

	mu        sync.Mutex // a leaf; guards the fields below
	done      []bool     // has its verdict
	left      int        // without a verdict
	delivered int        // acknowledged since the last Take
	each      bool       // every answer must be looked at
	answers   []Answer   // since the last Take
}

// task is one delivery of a parcel that is in a lane.
type task struct {
	parcel *Parcel
	work   int // index into parcel.events
	event  *delivery.Event
}

// job is a task on its way through a lane, with its place in the queue of its aggregate, if parcel.order is not nil. The lane's lock
// guards everything but the task.
type job = order.Item[task]

// queues keep the jobs of each aggregate in order.
type queues = order.Queues[task]

func newQueues(d *Destination, t *target) *queues {
	return order.New[task](order.Options{Total: d.Total, Batches: t.batch != nil})
}

// failures returns how many failed attempts were counted before.
func (t *task) failures() int { return t.parcel.events[t.work].Failures }

// refused returns why the event must not be delivered, nil if it may be.
func (t *task) refused() error { return t.parcel.events[t.work].Refused }

// behind returns the verdict on the job when an earlier one of its aggregate gets v: the engine keeps some jobs instead of parking
// them, see order.Queues.Parks.
func (t *task) behind(v Verdict) Verdict {
	if v == VerdictParked && t.parcel.order != nil && !t.parcel.order.Parks(t.parcel.events[t.work].Row) {
		return VerdictReleased
	}
	return v
}

// delayed reports whether the event became available later than it was written, where the lane can
// tell.
func (t *task) delayed() bool { return t.parcel.events[t.work].Delayed }

// NewParcel returns an empty parcel. The lane calls sure before deliveries begin, to find out
// whether they still may; it calls wake after answers that must be looked at: any except that a
// fresh event was delivered, and the last one. Neither may block.
func NewParcel(sure func() bool, wake func(last bool)) *Parcel {
	return &Parcel{sure: sure, wake: wake}
}

// Room returns memory for n deliveries, to append to and pass to Fill. The parcel must be new or
// empty.
func (p *Parcel) Room(n int) []Delivery {
	if cap(p.events) < n {
		p.events = make([]Delivery, 0, n)
	}
	return p.events[:0]
}

// Fill sets the deliveries of the parcel, which must be new or empty.
func (p *Parcel) Fill(all []Delivery) {
	p.events = all
	if cap(p.jobs) < len(all) {
		p.jobs = make([]job, len(all))
		p.done = make([]bool, len(all))
	}
	p.jobs, p.done = p.jobs[:len(all)], p.done[:len(all)]
	p.left, p.delivered, p.each, p.answers = len(all), 0, false, nil
}

// Empty releases the deliveries, whose events take more memory than the parcel. None of them may be
// in flight, and all answers must have been taken.
func (p *Parcel) Empty() {
	clear(p.jobs)
	clear(p.done)
	clear(p.events)
	p.events = p.events[:0]
}

// Take returns how many events were acknowledged since the last call, the answers that say more than
// that a fresh event was delivered, and how many deliveries have no verdict yet.
func (p *Parcel) Take() (acknowledged int, answers []Answer, left int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	acknowledged, answers = p.delivered, p.answers
	p.delivered, p.answers = 0, nil
	return acknowledged, answers, p.left
}

// Each makes every later answer one that must be looked at. It returns the results of Take and the
// places of the deliveries that have no verdict yet, in the order of Fill.
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

// UnderWay calls f for each delivery that has no verdict, or whose verdict, other than
// VerdictDelivered, has not been taken yet.
func (p *Parcel) UnderWay(f func(d *Delivery)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.answers {
		if p.answers[i].Verdict != VerdictDelivered {
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

// answerParcels passes on the outcomes of jobs, to each parcel at once where its jobs follow one
// another. The lane's lock is held, so that an engine that lets the lane continue has received all
// that the lane has given back.
func answerParcels(jobs []*job, outs []outcome) {
	for len(jobs) > 0 {
		p, n := jobs[0].Value.parcel, 1
		for n < len(jobs) && jobs[n].Value.parcel == p {
			n++
		}
		p.answer(jobs[:n], outs[:n])
		jobs, outs = jobs[n:], outs[n:]
	}
}

// answer records the verdicts on jobs of the parcel. The lane's lock is held.
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

// answerLocked records one verdict, and reports whether it must be looked at.
func (p *Parcel) answerLocked(j *job, out *outcome) (tell bool) {
	d := &p.events[j.Value.work]
	p.done[j.Value.work] = true
	p.left--
	if out.verdict == VerdictDelivered {
		p.delivered++
		if !d.Row && !out.behind && !p.each {
			return false
		}
	}
	a := Answer{Delivery: *d, Place: j.Value.work, Verdict: out.verdict, Delay: out.delay, Class: out.class, Err: out.err, Behind: out.behind}
	if out.verdict.counts() {
		a.Failures++
	}
	p.answers = append(p.answers, a)
	return true
}
