package queue

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/deliveries"
)

// claim is the result of one query, on its way through the lanes. It is ready when every delivery
// of its fast lanes is answered. A delivery that is not answered by then, or by the end of the lock
// budget, continues under a lease.
type claim struct {
	work         []Work
	parts        []*part            // one for each lane that events were handed to
	rest         map[int]*remainder // what remains of works that were not simply delivered, by index in work
	late         *leases            // receives the answers that come after the settlement
	acknowledged []deliveries.Ref   // replayed deliveries that have succeeded

	ready   chan struct{} // capacity 1: waiting has reached zero
	over    chan struct{} // capacity 1: a part of a detached claim has answers
	waiting atomic.Int32  // parts that the claim waits for

	detached atomic.Bool // unanswered deliveries continue under leases
	adrift   atomic.Bool // those leases may not have been written
	lapses   uint64      // leases.lapses when the claim was detached
}

// part is what a claim has handed to one lane.
type part struct {
	claim    *claim
	lane     dispatch.QueueLane
	parcel   *dispatch.Parcel
	events   []dispatch.Delivery
	works    []int32 // the index of each delivery in claim.work
	room     int     // granted by the lane and not used yet
	fast     bool    // the claim waits for it
	finished atomic.Bool
	leased   map[int]*lease // by place in the parcel
	held     bool           // answers go to leases; guarded by leases.mu
}

// remainder is the unfinished part of a work.
type remainder struct {
	state  deliveries.State   // set if the event cannot be delivered now: delayed or unrouted
	back   []returned         // no worker has started these
	put    []deliveries.Entry // failed
	leased []*lease           // still running
}

// returned is a delivery that a lane had no room for, or gave back.
type returned struct {
	lane  dispatch.QueueLane
	entry deliveries.Entry
}

// lease is a delivery that continues after its claim has ended. It is renewed until its handler has
// long outlived its timeout: then another relay may take it over.
type lease struct {
	entry deliveries.Entry // in the state running
	until time.Time
	over  bool // the delivery is answered
}

func newPart(l dispatch.QueueLane) *part {
	p := &part{lane: l}
	p.parcel = dispatch.NewParcel(func() bool { return !p.claim.lapsed() }, p.answered)
	return p
}

// answered is called when the parcel has answers.
func (p *part) answered(last bool) {
	c := p.claim
	if last {
		p.finished.Store(true)
		if p.fast && c.waiting.Add(-1) == 0 {
			c.ready <- struct{}{} // never blocks: it is sent once
		}
	}
	if !c.detached.Load() {
		return
	}
	c.late.answered(p)
	select {
	case c.over <- struct{}{}:
	default:
	}
}

// lapsed reports whether the workers must not start what they have not started yet: these
// deliveries are leased, and another relay may have taken them over.
func (c *claim) lapsed() bool {
	return c.detached.Load() && (c.adrift.Load() || c.lapses != c.late.lapses.Load() || !c.late.sure(time.Now()))
}

// remains returns the remainder of a work, and creates it if there is none.
func (c *claim) remains(work int) *remainder {
	r := c.rest[work]
	if r == nil {
		r = &remainder{}
		if c.rest == nil {
			c.rest = make(map[int]*remainder)
		}
		c.rest[work] = r
	}
	return r
}

// collect takes the answers that have arrived so far, of all parts.
func (c *claim) collect() {
	for _, p := range c.parts {
		_, answers, _ := p.parcel.Take()
		c.note(p, answers)
	}
}

// underWay reports whether any delivery is still running.
func (c *claim) underWay() bool {
	return slices.ContainsFunc(c.parts, func(p *part) bool { return len(p.leased) > 0 })
}

// note records answers of a part.
func (c *claim) note(p *part, answers []dispatch.Answer) {
	for i := range answers {
		a := &answers[i]
		if l := p.leased[a.Place]; l != nil {
			l.over = true
			c.late.tokens.End(l.entry) // no row carries this token
			delete(p.leased, a.Place)
		}
		work := int(p.works[a.Place])
		if a.Verdict.Settles() {
			if e := c.work[work].Event; a.Verdict == dispatch.VerdictDelivered && e.Replay > 0 {
				c.acknowledged = append(c.acknowledged, deliveries.Ref{EventID: e.ID, Destination: p.lane.Destination().Name})
			}
			continue
		}
		r, e := c.remains(work), entryOf(&c.work[work], p.lane.Destination().Name, a)
		if a.Verdict == dispatch.VerdictReleased {
			r.back = append(r.back, returned{p.lane, e})
		} else {
			r.put = append(r.put, e)
		}
	}
}

// detach ends the wait: deliveries that no worker has started are taken back, running ones are
// leased.
func (c *claim) detach() {
	c.lapses = c.late.lapses.Load()
	c.detached.Store(true)
	for _, p := range c.parts {
		p.lane.TakeBack(p.parcel)
		answers, underWay := p.parcel.Each()
		c.note(p, answers)
		if len(underWay) > 0 {
			p.leased = make(map[int]*lease, len(underWay))
		}
		for _, place := range underWay {
			w := &c.work[p.works[place]]
			l := &lease{until: time.Now().Add(p.lane.Destination().Timeout + c.late.length), entry: w.Entry(p.lane.Destination().Name, deliveries.Running)}
			l.entry.Token = c.late.tokens.Next()
			p.leased[place] = l
			r := c.remains(int(p.works[place]))
			r.leased = append(r.leased, l)
		}
	}
}

// release drops the events, none of which is being delivered, so that the next claim can use the
// parts. Events are not reused, because handlers may keep them.
func (c *claim) release() {
	for _, p := range c.parts {
		p.parcel.Empty()
	}
}

// overdue reports to the lanes that keep the claim waiting how long their handlers take at least.
func (c *claim) overdue(atLeast time.Duration) {
	for _, p := range c.parts {
		if p.fast && !p.finished.Load() {
			p.lane.Observe(atLeast)
		}
	}
}

// settlement returns what to write, and what stays untouched: the first fresh event of each lane,
// and whether stored deliveries are among it.
func (c *claim) settlement(lanesOf func(*Work) []dispatch.QueueLane) (s *Settlement, left map[dispatch.QueueLane]int64, rows bool) {
	s, left = &Settlement{Done: make([]int64, 0, len(c.work)), Acknowledged: c.acknowledged}, make(map[dispatch.QueueLane]int64)
	for i := range c.work {
		w := &c.work[i]
		var r *remainder
		if len(c.rest) > 0 {
			r = c.rest[i]
		}
		switch {
		case r == nil && !w.Fresh:
			s.Remove = append(s.Remove, deliveries.Ref{EventID: w.Event.ID, Destination: w.Destination})
		case r == nil:
			s.Done = append(s.Done, w.Event.ID)
		case r.state != "":
			if w.Fresh {
				s.Deferred = append(s.Deferred, w.Event.ID)
			}
			e := w.Entry("", r.state)
			e.Delay = w.Delay
			s.Put = append(s.Put, e)
		case w.Missing:
			s.Put = append(s.Put, r.put...)
		case r.untouched(w, lanesOf):
			rows = rows || !w.Fresh
			for i := range r.back {
				if w.Fresh {
					passes(left, r.back[i].lane, w.Event.ID)
				}
			}
		default:
			s.add(w, r)
		}
	}
	return s, left, rows
}

// back gives a work back for a lane that does not take it now.
func (c *claim) back(work int, l dispatch.QueueLane, passed map[dispatch.QueueLane]int64) {
	w, r := &c.work[work], c.remains(work)
	r.back = append(r.back, returned{l, w.Entry(l.Destination().Name, deliveries.Retry)})
	if w.Fresh {
		passes(passed, l, w.Event.ID)
	}
}

// has reports whether a row is among the works, which are in the order of ids.
func (c *claim) has(id int64, destination string) bool {
	i, _ := slices.BinarySearchFunc(c.work, id, func(w Work, id int64) int { return cmp.Compare(w.Event.ID, id) })
	for ; i < len(c.work) && c.work[i].Event.ID == id; i++ {
		if c.work[i].Destination == destination {
			return true
		}
	}
	return false
}

// passes records the first event that a lane has passed over.
func passes(first map[dispatch.QueueLane]int64, l dispatch.QueueLane, id int64) {
	if least, met := first[l]; !met || id < least {
		first[l] = id
	}
}

// untouched reports whether no delivery of the work was started. A due delivery without a
// destination is always split into one row per destination: left alone, it would be claimed again
// and again while other lanes have room.
func (r *remainder) untouched(w *Work, lanesOf func(*Work) []dispatch.QueueLane) bool {
	if len(r.put) > 0 || len(r.back) == 0 || !w.Fresh && w.Destination == "" {
		return false
	}
	for _, l := range r.leased {
		if !l.over {
			return false
		}
	}
	return len(r.back) == len(lanesOf(w))
}

// entryOf returns the row of a delivery that was answered with anything but success.
func entryOf(w *Work, destination string, a *dispatch.Answer) deliveries.Entry {
	e := w.Entry(destination, deliveries.Retry)
	e.Failures, e.Delay = a.Failures, a.Delay
	if a.Verdict == dispatch.VerdictDead {
		e.State = deliveries.Dead
	}
	if a.Err != nil {
		e.Class, e.Err = a.Class.String(), a.Err.Error()
	}
	return e
}
