package dispatch

import (
	"sync"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/order"
)

// Delivery is one event that a [Batch] brings to a lane.
type Delivery struct {
	// Event has its Destination and Attempt set.
	Event *delivery.Event
	// Key is zero if order does not matter.
	Key Key
	// Failures counts the failed attempts before this one.
	Failures int
	// Refused is why the event must not be delivered, nil for nearly all events. The lane makes a dead letter with
	// this error and does not call the handler.
	Refused error
	// Row means that outbox_deliveries has a row for the delivery.
	Row bool
	// Delayed means that the event became available after it was written.
	Delayed bool
	// Leads means that no stored delivery of its aggregate comes before this one, except those handed over earlier.
	// Such a delivery begins although the aggregate is blocked. Leads is void if one of the aggregate has failed
	// since the engine read the stored deliveries: see Since.
	Leads bool
	// Since is [Order.Failures] before that read; 0 until the delivery is handed over for the first time.
	Since uint64
	// Expires is when the event is too old to be delivered, by this relay's clock; zero for never. See
	// Destination.Expires. Lanes without ExpiresAfter ignore it.
	Expires time.Time
	// RateKey is the result of QueueLane.RateKey, if the engine has called it; otherwise Admit does.
	RateKey *string
	// Waited means that the delivery was stored to wait for its turn, for example because of a rate limit.
	Waited bool
}

// late reports whether the event has expired.
func (d *Delivery) late(now time.Time) bool { return !d.Expires.IsZero() && !now.Before(d.Expires) }

// entry describes the delivery for the queue of its aggregate. The first call sets Since, because other deliveries of
// the aggregate may fail before this one begins.
func (d *Delivery) entry(q *queues) order.Entry {
	if d.Leads && d.Since == 0 {
		d.Since = q.Failures()
	}
	return order.Entry{Key: &d.Key, Leads: d.Leads, Since: d.Since, Stored: d.Row}
}

// Answer is the outcome of one delivery of a batch.
type Answer struct {
	Delivery
	// Place is the index of the delivery in the batch, from 0.
	Place   int
	Verdict Verdict
	// Delay is how long to wait, for VerdictFailed and VerdictQuarantined.
	Delay time.Duration
	// Class says who is at fault for a failure, and Err is its error; both are zero without a failure.
	Class delivery.Class
	Err   error
	// Behind means that no delivery of the aggregate is in flight, and rows may wait behind this one. The aggregate
	// stays blocked until the engine has handled the rows.
	Behind bool
}

// Batch is a set of deliveries that an engine hands to a lane at once, with their answers. The engine reuses the
// batch once no delivery is in flight.
type Batch struct {
	jobs   []job
	events []Delivery
	order  *queues         // of the engine that owned the lane at the handover; nil without order
	valid  func() bool     // no delivery begins while it returns false
	wake   func(last bool) // answers are ready; must not block

	mu        sync.Mutex // a leaf lock; guards the fields below
	done      []bool     // by delivery: it has a verdict
	left      int        // number without a verdict
	delivered int        // acknowledged since the last Take
	each      bool       // report every answer
	answers   []Answer   // since the last Take
}

// task is one delivery of a batch in a lane.
type task struct {
	batch *Batch
	index int // index into batch.events
	event *delivery.Event
}

// job is a task with its place in the queue of its aggregate, if batch.order is not nil. The lane's lock guards
// everything except the task.
type job = order.Item[task]

// queues keep the jobs of each aggregate in order.
type queues = order.Queues[task]

func newQueues(d *Destination, t *target) *queues {
	return order.New[task](order.Options{Total: d.Total, Batches: t.batch != nil, Room: maxBehind})
}

// failures returns the number of earlier failed attempts.
func (t *task) failures() int { return t.batch.events[t.index].Failures }

// refused returns why the event must not be delivered, nil if it may be.
func (t *task) refused() error { return t.batch.events[t.index].Refused }

// behind returns the verdict on the job when an earlier one of its aggregate gets v. Some jobs return to the engine
// instead of being parked: see order.Queues.Parks.
func (t *task) behind(v Verdict) Verdict {
	if v == VerdictParked && t.batch.order != nil && !t.batch.order.Parks(t.batch.events[t.index].Row) {
		return VerdictReleased
	}
	return v
}

// addFailures counts more failed attempts before a delivery that a worker has taken. Handlers may hold its event, so the delivery
// gets a copy.
func (p *Batch) addFailures(j *job, n int) {
	e := *j.Value.event
	e.Attempt += n
	j.Value.event = &e
	p.mu.Lock()
	defer p.mu.Unlock()

	d := &p.events[j.Value.index]
	d.Event = &e
	d.Failures += n
}

// delayed reports whether the event became available after it was written, if known.
func (t *task) delayed() bool { return t.batch.events[t.index].Delayed }

// NewBatch returns an empty batch. The lane calls valid before deliveries begin, to check that the engine still
// holds them. The lane calls wake after the last answer, and after each answer except the delivery of a fresh event.
// Neither function may block.
func NewBatch(valid func() bool, wake func(last bool)) *Batch {
	return &Batch{valid: valid, wake: wake}
}

// Alloc returns memory for n deliveries, to append to and pass to Fill. The batch must be new or empty.
func (p *Batch) Alloc(n int) []Delivery {
	if cap(p.events) < n {
		p.events = make([]Delivery, 0, n)
	}
	return p.events[:0]
}

// Fill sets the deliveries of the batch, which must be new or empty.
func (p *Batch) Fill(all []Delivery) {
	p.events = all

	if cap(p.jobs) < len(all) {
		p.jobs = make([]job, len(all))
		p.done = make([]bool, len(all))
	}

	p.jobs = p.jobs[:len(all)]
	p.done = p.done[:len(all)]
	p.left = len(all)
	p.delivered = 0
	p.each = false
	p.answers = nil
}

// Empty releases the deliveries, whose events take more memory than the batch. No delivery may be in flight, and
// Take must have returned all answers.
func (p *Batch) Empty() {
	clear(p.jobs)
	clear(p.done)
	clear(p.events)
	p.events = p.events[:0]
}

// Take returns the number of events acknowledged since the last call, the other answers, and the number of deliveries
// without a verdict. The other answers include acknowledgements that need more than a count: of stored deliveries,
// for example.
func (p *Batch) Take() (acknowledged int, answers []Answer, left int) {
	p.mu.Lock()
	defer p.mu.Unlock()

	acknowledged = p.delivered
	answers = p.answers
	p.delivered = 0
	p.answers = nil
	return acknowledged, answers, p.left
}

// Each makes the batch report every later answer. It returns the answers so far and the indexes of the deliveries
// without a verdict, in the order of Fill.
func (p *Batch) Each() (answers []Answer, underWay []int) {
	p.mu.Lock()
	defer p.mu.Unlock()

	answers = p.answers
	p.answers = nil
	p.delivered = 0
	p.each = true

	for i := range p.done {
		if !p.done[i] {
			underWay = append(underWay, i)
		}
	}

	return answers, underWay
}

// UnderWay calls f for each delivery without a verdict, or with a verdict other than VerdictDelivered that Take has
// not returned yet.
func (p *Batch) UnderWay(f func(d *Delivery)) {
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

// answerBatches records outcomes, with one call per run of jobs of the same batch. The lane's lock is held: an
// engine that resumes the lane has then received all returned deliveries.
func answerBatches(jobs []*job, outs []outcome) {
	for len(jobs) > 0 {
		p := jobs[0].Value.batch
		n := 1
		for n < len(jobs) && jobs[n].Value.batch == p {
			n++
		}

		p.answer(jobs[:n], outs[:n])
		jobs = jobs[n:]
		outs = outs[n:]
	}
}

// answer records the verdicts on jobs of the batch. The lane's lock is held.
func (p *Batch) answer(jobs []*job, outs []outcome) {
	look := false
	p.mu.Lock()
	for i, j := range jobs {
		look = p.answerLocked(j, &outs[i]) || look
	}

	last := p.left == 0
	p.mu.Unlock()
	if last || look {
		p.wake(last)
	}
}

// answerLocked records one verdict, and reports whether the engine must look at the answer.
func (p *Batch) answerLocked(j *job, out *outcome) (look bool) {
	d := &p.events[j.Value.index]
	p.done[j.Value.index] = true
	p.left--

	if out.verdict == VerdictDelivered {
		p.delivered++
		if !d.Row && !out.behind && !p.each {
			return false
		}
	}

	a := Answer{
		Delivery: *d,
		Place:    j.Value.index,
		Verdict:  out.verdict,
		Delay:    out.delay,
		Class:    out.class,
		Err:      out.err,
		Behind:   out.behind,
	}
	if out.verdict.counts() {
		a.Failures++
	}

	p.answers = append(p.answers, a)
	return true
}
