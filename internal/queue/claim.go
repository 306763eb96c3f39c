package queue

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/deliveries"
)

// claim is the result of one query, on its way through the lanes. It is ready when its fast lanes have answered all
// deliveries. A delivery unanswered by then, or by the end of the lock budget, continues under a lease.
type claim struct {
	work         []Work
	shares       []*share            // one per lane that got deliveries
	unfinished   map[int]*unfinished // works that were not simply delivered, by index in work
	leases       *leases             // receives answers after the settlement
	acknowledged []deliveries.Ref    // replayed deliveries that succeeded

	ready       chan struct{} // capacity 1: waiting has reached zero
	lateAnswers chan struct{} // capacity 1: a share of a detached claim has answers
	waiting     atomic.Int32  // shares that the claim waits for

	evaluated time.Duration // how long filters took

	detached  atomic.Bool // unanswered deliveries continue under leases
	unwritten atomic.Bool // the leases may not have been written
	lapses    uint64      // leases.lapses when the claim was detached
}

// share is the part of a claim that one lane gets.
type share struct {
	claim    *claim
	lane     dispatch.QueueLane
	batch    *dispatch.Batch
	events   []dispatch.Delivery
	works    []int32 // index of each delivery in claim.work
	reserved int     // reserved in the lane and not used yet
	handed   bool    // the lane has the batch
	fast     bool    // the claim waits for it
	finished atomic.Bool
	leased   map[int]*lease // by index in the batch
	toLeases bool           // answers go to leases; guarded by leases.mu
}

// unfinished is what remains of a work that was not simply delivered.
type unfinished struct {
	outcome  *Settlement        // set if the outcome is known from an earlier claim
	state    deliveries.State   // set if the event is delayed or unrouted
	returned []returnedDelivery // no worker has begun these
	put      []deliveries.Entry // failed or delayed
	leased   []*lease           // still running
}

// returned is a delivery that a lane had no capacity for, or returned.
type returnedDelivery struct {
	lane  dispatch.QueueLane
	entry deliveries.Entry
}

// lease is a delivery that continues after the end of its claim. It is renewed until its handler has long outlived
// its timeout; then another relay may take it over.
type lease struct {
	entry    deliveries.Entry // in the state running
	until    time.Time
	answered bool         // the delivery is answered
	row      *withheldRow // set if the lease was refused: the answer goes there
}

func newShare(l dispatch.QueueLane) *share {
	p := &share{lane: l}
	p.batch = dispatch.NewBatch(func() bool { return !p.claim.lapsed() }, p.answered)
	return p
}

// answered handles new answers of the batch.
func (p *share) answered(last bool) {
	c := p.claim

	if last {
		p.finished.Store(true)
		if p.fast && c.waiting.Add(-1) == 0 {
			c.ready <- struct{}{} // never blocks: sent once
		}
	}

	if !c.detached.Load() {
		return
	}

	c.leases.answered(p)
	select {
	case c.lateAnswers <- struct{}{}:
	default:
	}
}

// lapsed reports whether workers must not begin more deliveries: the deliveries are leased, and another relay may
// have taken them over.
func (c *claim) lapsed() bool {
	if !c.detached.Load() {
		return false
	}
	isFenced := c.lapses != c.leases.lapses.Load() || !c.leases.valid(time.Now())
	return c.unwritten.Load() || isFenced
}

// unfinishedOf returns the unfinished rest of a work, and creates it if necessary.
func (c *claim) unfinishedOf(work int) *unfinished {
	r := c.unfinished[work]
	if r == nil {
		r = &unfinished{}
		if c.unfinished == nil {
			c.unfinished = make(map[int]*unfinished)
		}
		c.unfinished[work] = r
	}
	return r
}

// collect takes the answers of all shares that have arrived so far.
func (c *claim) collect() {
	for _, p := range c.shares {
		_, answers, _ := p.batch.Take()
		c.record(p, answers)
	}
}

// running reports whether any delivery is still running.
func (c *claim) running() bool {
	return slices.ContainsFunc(c.shares, func(p *share) bool { return len(p.leased) > 0 })
}

// record records answers of a share.
func (c *claim) record(p *share, answers []dispatch.Answer) {
	for i := range answers {
		a := &answers[i]
		if l := p.leased[a.Place]; l != nil {
			l.answered = true
			c.leases.tokens.End(l.entry) // no row carries this token
			delete(p.leased, a.Place)
		}

		work := int(p.works[a.Place])

		if a.Verdict.Settles() {
			if e := c.work[work].Event; a.Verdict == dispatch.VerdictDelivered && e.Replay > 0 {
				c.acknowledged = append(c.acknowledged, deliveries.Ref{EventID: e.ID, Destination: p.lane.Destination().Name})
			}
			continue
		}

		r, e := c.unfinishedOf(work), entryOf(&c.work[work], p.lane.Destination(), a)
		if a.Verdict == dispatch.VerdictReleased {
			r.returned = append(r.returned, returnedDelivery{p.lane, e})
		} else {
			r.put = append(r.put, e)
		}
	}
}

// detach ends the wait: deliveries that no worker has begun are taken back, and running ones are leased.
func (c *claim) detach() {
	c.lapses = c.leases.lapses.Load()
	c.detached.Store(true)

	for _, p := range c.shares {
		p.lane.TakeBack(p.batch)
		answers, underWay := p.batch.Each()
		c.record(p, answers)

		if len(underWay) > 0 {
			p.leased = make(map[int]*lease, len(underWay))
		}

		for _, place := range underWay {
			w := &c.work[p.works[place]]
			l := &lease{until: time.Now().Add(p.lane.Destination().Timeout + c.leases.length), entry: w.Entry(p.lane.Destination().Name, deliveries.Running)}
			l.entry.Token = c.leases.tokens.Next()
			p.leased[place] = l
			r := c.unfinishedOf(int(p.works[place]))
			r.leased = append(r.leased, l)
		}
	}
}

// withdraw ends a claim whose outcome is not recorded. The lanes begin no delivery of it, and get back the capacity that is
// reserved for it.
func (c *claim) withdraw() {
	c.unwritten.Store(true)
	c.shares = slices.DeleteFunc(c.shares, func(p *share) bool {
		if !p.handed {
			p.lane.Return(p.reserved + len(p.works))
		}
		return !p.handed
	})
	if !c.detached.Load() {
		c.detach()
	}
}

// release drops the events, so that the next claim can reuse the shares. No event may be in delivery. Events are not
// reused, because handlers may hold them.
func (c *claim) release() {
	for _, p := range c.shares {
		p.batch.Empty()
	}
}

// observeSlow tells the lanes that keep the claim waiting the minimum time that their handlers take.
func (c *claim) observeSlow(atLeast time.Duration) {
	for _, p := range c.shares {
		if p.fast && !p.finished.Load() {
			p.lane.Observe(atLeast)
		}
	}
}

// settlement returns what to write, the first fresh event that each lane left untouched, and whether stored
// deliveries are untouched.
func (c *claim) settlement(lanesOf func(*Work) []dispatch.QueueLane) (s *Settlement, left map[dispatch.QueueLane]int64, rows bool) {
	s, left = &Settlement{Done: make([]int64, 0, len(c.work)), Acknowledged: c.acknowledged}, make(map[dispatch.QueueLane]int64)

	for i := range c.work {
		w := &c.work[i]
		var r *unfinished
		if len(c.unfinished) > 0 {
			r = c.unfinished[i]
		}

		switch {
		case r == nil && !w.Fresh:
			s.Remove = append(s.Remove, deliveries.Ref{EventID: w.Event.ID, Destination: w.Destination})
		case r == nil:
			s.Done = append(s.Done, w.Event.ID)
		case r.outcome != nil:
			s.join(r.outcome)
		case r.state != "":
			if w.Fresh {
				s.Deferred = append(s.Deferred, w.Event.ID)
			}
			e := w.Entry("", r.state)
			e.Delay, e.Own = w.Delay, r.state == deliveries.Retry
			s.Put = append(s.Put, e)
		case w.Missing:
			s.Put = append(s.Put, r.put...)
		case r.untouched(w, lanesOf):
			rows = rows || !w.Fresh
			for i := range r.returned {
				if w.Fresh {
					keepFirst(left, r.returned[i].lane, w.Event.ID)
				}
			}
		default:
			s.add(w, r)
		}
	}

	return s, left, rows
}

// returnWork records that a lane does not take a work now.
func (c *claim) returnWork(work int, l dispatch.QueueLane, passed map[dispatch.QueueLane]int64) {
	w, r := &c.work[work], c.unfinishedOf(work)
	r.returned = append(r.returned, returnedDelivery{l, w.Entry(l.Destination().Name, deliveries.Retry)})
	if w.Fresh {
		keepFirst(passed, l, w.Event.ID)
	}
}

// has reports whether a row is among the works, which are in id order.
func (c *claim) has(id int64, destination string) bool {
	i, _ := slices.BinarySearchFunc(c.work, id, func(w Work, id int64) int { return cmp.Compare(w.Event.ID, id) })
	for ; i < len(c.work) && c.work[i].Event.ID == id; i++ {
		if c.work[i].Destination == destination {
			return true
		}
	}
	return false
}

// keepFirst records the first event that a lane has passed over.
func keepFirst(first map[dispatch.QueueLane]int64, l dispatch.QueueLane, id int64) {
	if least, met := first[l]; !met || id < least {
		first[l] = id
	}
}

// untouched reports whether no delivery of the work began. A due delivery without a destination is always split into
// one row per destination: an untouched one would be claimed again and again while other lanes have capacity.
func (r *unfinished) untouched(w *Work, lanesOf func(*Work) []dispatch.QueueLane) bool {
	isUndecided := !w.Fresh && w.Destination == ""
	if len(r.put) > 0 || len(r.returned) == 0 || isUndecided {
		return false
	}
	for _, l := range r.leased {
		if !l.answered {
			return false
		}
	}
	return len(r.returned) == len(lanesOf(w))
}

// entryOf returns the row of a delivery that did not succeed.
func entryOf(w *Work, d *dispatch.Destination, a *dispatch.Answer) deliveries.Entry {
	e := w.Entry(d.Name, deliveries.Retry)
	e.Failures, e.Delay = a.Failures, a.Delay
	if a.Verdict == dispatch.VerdictDead {
		e.State, e.ReportTo = deliveries.Dead, d.OnDead.To
	}
	if a.Err != nil {
		e.Class, e.Err = a.Class.String(), a.Err.Error()
	}
	return e
}
