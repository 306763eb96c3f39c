package stream

import (
	"slices"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/tail"
)

// flight has the events of a unit in memory: parcels at the lane, and deliveries that the lane gave
// back.
type flight struct {
	parcels []*dispatch.Parcel // at the lane
	spare   []*dispatch.Parcel // finished, for reuse
	sizes   map[*dispatch.Parcel]int
	bytes   int                 // of the deliveries at the lane
	left    int                 // of them, without an answer that was taken
	again   []dispatch.Delivery // given back, by id: they go before all others
}

func newFlight() flight { return flight{sizes: make(map[*dispatch.Parcel]int)} }

// parcel returns an empty parcel, a finished one if there is any.
func (f *flight) parcel(c *common) *dispatch.Parcel {
	n := len(f.spare)
	if n == 0 {
		return dispatch.NewParcel(c.pos.Valid, func(bool) { c.poke() })
	}
	p := f.spare[n-1]
	f.spare = f.spare[:n-1]
	return p
}

// keep takes an empty parcel back.
func (f *flight) keep(p *dispatch.Parcel) { f.spare = append(f.spare, p) }

// begin records a parcel that is about to be handed over.
func (f *flight) begin(p *dispatch.Parcel, all []dispatch.Delivery) {
	size := 0
	for i := range all {
		size += eventBytes(all[i].Event)
	}
	f.bytes += size
	f.left += len(all)
	f.sizes[p] = size
	f.parcels = append(f.parcels, p)
}

// giveBack takes back a delivery that no worker has started.
func (f *flight) giveBack(d dispatch.Delivery) {
	at, _ := slices.BinarySearchFunc(f.again, d.Event.ID, func(d dispatch.Delivery, id int64) int { return compare(d.Event.ID, id) })
	f.again = slices.Insert(f.again, at, d)
}

// take collects the answers, and returns how many events were acknowledged and whether there was
// any answer. It begins with the parcel that was handed over last: when an event of an aggregate is
// found to be answered, so are those before it. In the other order, a row might be removed and an
// earlier one kept, and a crash would repeat that one alone.
func (f *flight) take(answered func(*dispatch.Answer)) (acknowledged int64, news bool) {
	taken := make([]taking, len(f.parcels))
	for i, p := range slices.Backward(f.parcels) {
		n, answers, left := p.Take()
		taken[i] = taking{answers, left}
		acknowledged += int64(n)
		news = news || n > 0 || len(answers) > 0
	}
	f.left = 0
	kept := f.parcels[:0]
	for i, p := range f.parcels {
		for k := range taken[i].answers {
			answered(&taken[i].answers[k])
		}
		f.left += taken[i].left
		if taken[i].left > 0 {
			kept = append(kept, p)
			continue
		}
		f.bytes -= f.sizes[p]
		delete(f.sizes, p)
		p.Empty()
		f.keep(p)
	}
	clear(f.parcels[len(kept):])
	f.parcels = kept
	return acknowledged, news
}

// taking is a parcel's part in take.
type taking struct {
	answers []dispatch.Answer
	left    int
}

// openIDs returns the ids of events that were read, and are neither acknowledged nor rows, nor
// about to become rows.
func (f *flight) openIDs() (ids []int64) {
	note := func(d *dispatch.Delivery) {
		if !d.Row {
			ids = append(ids, d.Event.ID)
		}
	}
	// The last parcel first: an event found to be delivered was delivered after those checked after
	// it. So of an aggregate only a suffix stays open, and no event before it.
	for _, p := range slices.Backward(f.parcels) {
		p.UnderWay(note)
	}
	for i := range f.again {
		note(&f.again[i])
	}
	return ids
}

// account returns the position to write: the highest id that r has read, and the ids up to it that are neither acknowledged
// nor stored elsewhere: invisible ones, those in memory, of which there are n, and more. The next owner reads them all again.
func (f *flight) account(r *tail.Reader, more []int64) (head int64, open tail.Ranges, n int) {
	ids := f.openIDs()
	n = len(ids)
	ids = append(ids, more...)
	slices.Sort(ids)
	gaps := r.Gaps()
	open = make(tail.Ranges, 0, gaps.Len()+len(ids)/8)
	add := func(r tail.Range) {
		if n := len(open); n > 0 && r.From <= open[n-1].To+1 {
			open[n-1].To = max(open[n-1].To, r.To)
			return
		}
		open = append(open, r)
	}
	for _, g := range gaps {
		for len(ids) > 0 && ids[0] < g.From {
			add(tail.Range{From: ids[0], To: ids[0]})
			ids = ids[1:]
		}
		add(g)
	}
	for _, id := range ids {
		add(tail.Range{From: id, To: id})
	}
	return r.Head(), open, n
}

// waiting returns the bytes of the deliveries in again.
func (f *flight) waiting() (size int) {
	for i := range f.again {
		size += eventBytes(f.again[i].Event)
	}
	return size
}

// eventBytes is the approximate size of an event in memory, besides its fixed size.
func eventBytes(e *delivery.Event) int {
	n := len(e.Payload) + len(e.AggregateID)
	for name, value := range e.Headers {
		n += len(name) + len(value)
	}
	return n
}
