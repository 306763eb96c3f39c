package queue

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/dispatch"
)

// claim is what one query has brought, on its way through the lanes. It is ready when
// every delivery of the lanes that it waits for is answered; what is not answered by then, or
// by the end of the lock budget, goes on under a lease.
type claim struct {
	work  []Work
	parts []*part            // one for each lane that has got something
	rest  map[int]*remainder // works that are not simply delivered, by their place
	late  *leases            // takes the answers that come after the settlement

	ready   chan struct{} // capacity 1: waiting has reached zero
	over    chan struct{} // capacity 1: a part has come to its end after all
	waiting atomic.Int32  // parts that the claim waits for

	detached atomic.Bool // what is unanswered goes on under a lease
	adrift   atomic.Bool // which may not have been written
	lapses   uint64      // of leases when it was detached
}

// part is what a claim has handed to one lane.
type part struct {
	claim    *claim
	lane     dispatch.Lane
	parcel   *dispatch.Parcel
	events   []dispatch.Delivery
	works    []int32 // the place of each delivery in claim.work
	room     int     // granted and not used
	fast     bool    // the claim waits for it
	finished atomic.Bool
	leased   map[int]*lease // by place in the parcel
	held     bool           // answers go to leases, whose lock guards it
}

// remainder is a work of which something is left.
type remainder struct {
	state  EntryState // set if it cannot be delivered now: delayed or unrouted
	back   []returned // nobody has begun with
	put    []Entry    // has failed
	leased []*lease   // goes on
}

// returned is a delivery for which a lane had no room, or that it gave back.
type returned struct {
	lane  dispatch.Lane
	entry Entry
}

// lease is a delivery that goes on after its claim has ended. It is renewed until its
// handler has long outlived its timeout: then another relay may have it.
type lease struct {
	entry Entry // in the state running
	until time.Time
	over  bool // it is answered
}

func newPart(l dispatch.Lane) *part {
	p := &part{lane: l}
	p.parcel = dispatch.NewParcel(func() bool { return !p.claim.lapsed() }, p.answered)
	return p
}

// answered is called when there are answers to be looked at.
func (p *part) answered(last bool) { //nolint:revive // as dispatch.NewParcel has it
	c := p.claim
	if last {
		p.finished.Store(true)
		if p.fast && c.waiting.Add(-1) == 0 {
			c.ready <- struct{}{} // never blocks: it happens once
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

// lapsed reports whether what has not been begun with must be left alone: it goes on
// under leases, and others may have it by now.
func (c *claim) lapsed() bool {
	return c.detached.Load() && (c.adrift.Load() || c.lapses != c.late.lapses.Load() || !c.late.sure(time.Now()))
}

// remains returns what is left of a work.
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

// collect takes the answers of all parts that have come so far.
func (c *claim) collect() {
	for _, p := range c.parts {
		_, answers, _ := p.parcel.Take()
		c.note(p, answers)
	}
}

// underWay reports whether something goes on.
func (c *claim) underWay() bool {
	return slices.ContainsFunc(c.parts, func(p *part) bool { return len(p.leased) > 0 })
}

// note takes answers of a part.
func (c *claim) note(p *part, answers []dispatch.Answer) {
	for i := range answers {
		a := &answers[i]
		if l := p.leased[a.Place]; l != nil {
			l.over = true
			c.late.tokens.end(l.entry.Token) // no row has it
			delete(p.leased, a.Place)
		}
		if a.Verdict == dispatch.VerdictDelivered {
			continue
		}
		work := int(p.works[a.Place])
		r, e := c.remains(work), entryOf(&c.work[work], p.lane.Name(), a)
		if a.Verdict == dispatch.VerdictReleased {
			r.back = append(r.back, returned{p.lane, e})
		} else {
			r.put = append(r.put, e)
		}
	}
}

// detach ends the waiting: what no worker has begun with is taken back, what is under way
// is leased.
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
			l := &lease{until: time.Now().Add(p.lane.Timeout() + c.late.length), entry: Entry{
				Ref: Ref{w.Event.ID, p.lane.Name()}, EventType: w.Event.Type, State: EntryRunning, Failures: w.Failures, Token: c.late.tokens.next(),
			}}
			p.leased[place] = l
			r := c.remains(int(p.works[place]))
			r.leased = append(r.leased, l)
		}
	}
}

// letGo lets go of the events, none of which is under way: the parts are used for the next
// claim. Events are not reused, handlers may keep them.
func (c *claim) letGo() {
	for _, p := range c.parts {
		p.parcel.Empty()
	}
}

// overdue tells the lanes that keep the claim waiting how long they take at least.
func (c *claim) overdue(atLeast time.Duration) {
	for _, p := range c.parts {
		if p.fast && !p.finished.Load() {
			p.lane.Observe(atLeast)
		}
	}
}

// settlement says what is to be written, and what is left untouched: the first fresh event
// of each lane, and whether there are stored deliveries.
func (c *claim) settlement(lanesOf func(*Work) []dispatch.Lane) (s *Settlement, left map[dispatch.Lane]int64, rows bool) {
	s, left = &Settlement{Done: make([]int64, 0, len(c.work))}, make(map[dispatch.Lane]int64)
	for i := range c.work {
		w := &c.work[i]
		var r *remainder
		if len(c.rest) > 0 {
			r = c.rest[i]
		}
		switch {
		case w.Orphan, r == nil && !w.Fresh:
			s.Remove = append(s.Remove, Ref{w.Event.ID, w.Destination})
		case r == nil:
			s.Done = append(s.Done, w.Event.ID)
		case r.state != "":
			if w.Fresh {
				s.Deferred = append(s.Deferred, w.Event.ID)
			}
			s.Put = append(s.Put, Entry{Ref: Ref{EventID: w.Event.ID}, EventType: w.Event.Type, State: r.state, Delay: w.Delay})
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

// passes notes the first event that a lane has passed over.
func passes(first map[dispatch.Lane]int64, l dispatch.Lane, id int64) {
	if least, met := first[l]; !met || id < least {
		first[l] = id
	}
}

// untouched reports whether nothing was begun with. A due delivery without a destination
// is split up in any case: left alone, it would be claimed without end while other lanes have
// room.
func (r *remainder) untouched(w *Work, lanesOf func(*Work) []dispatch.Lane) bool {
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

// add takes what is left of a work that some lane has begun with.
func (s *Settlement) add(w *Work, r *remainder) {
	first := len(s.Put)
	s.Put = append(s.Put, r.put...)
	for _, l := range r.leased {
		if !l.over {
			s.Put = append(s.Put, l.entry)
		}
	}
	for i := range r.back {
		s.Put = append(s.Put, r.back[i].entry)
	}
	open := false
	for i := first; i < len(s.Put); i++ {
		open = open || s.Put[i].State != EntryDead
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

// entryOf returns the row that a delivery leaves behind which was answered, other than that
// it was delivered.
func entryOf(w *Work, destination string, a *dispatch.Answer) Entry {
	e := Entry{
		Ref: Ref{w.Event.ID, destination}, EventType: w.Event.Type, State: EntryRetry, Failures: a.Failures, Delay: a.Delay,
	}
	if a.Verdict == dispatch.VerdictDead {
		e.State = EntryDead
	}
	if a.Err != nil {
		e.Class, e.Err = a.Class.String(), a.Err.Error()
	}
	return e
}
