// Package flight has the events of a shard that are in memory: parcels at the lane, and deliveries that the lane has returned. What it
// knows of them is the part of a position that no table has yet: see [Events.Account].
package flight

import (
	"cmp"
	"slices"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/tail"
)

// Events are the events of one reader that are in memory. Only the goroutine of its shard uses them; answers come by way of the
// parcels.
type Events struct {
	// Returned has the deliveries that the lane has returned, by id, and others that wait for it: they go before all that is yet to be read.
	Returned []dispatch.Delivery
	// Parcels are at the lane, in the order in which they were handed over.
	Parcels []*dispatch.Parcel
	// Bytes is the size of the events at the lane.
	Bytes int
	// Left is how many of the deliveries at the lane had no answer at the last Take.
	Left int

	valid func() bool // whether deliveries may begin
	wake  func()      // wakes the shard: a parcel has an answer
	spare []*dispatch.Parcel
	sizes map[*dispatch.Parcel]int
}

// New returns Events of a shard that may begin deliveries while valid reports true, and that wake wakes when there are answers. Any
// goroutine may call both.
func New(valid func() bool, wake func()) Events {
	return Events{valid: valid, wake: wake, sizes: make(map[*dispatch.Parcel]int)}
}

// Parcel returns an empty parcel, a finished one if there is any.
func (f *Events) Parcel() *dispatch.Parcel {
	n := len(f.spare)
	if n == 0 {
		wake := f.wake // f may be another one's when the parcel has its answer
		return dispatch.NewParcel(f.valid, func(bool) { wake() })
	}
	p := f.spare[n-1]
	f.spare = f.spare[:n-1]
	return p
}

// Keep takes an empty parcel back.
func (f *Events) Keep(p *dispatch.Parcel) { f.spare = append(f.spare, p) }

// Begin records a filled parcel that is about to be handed over.
func (f *Events) Begin(p *dispatch.Parcel, all []dispatch.Delivery) {
	size := Size(all)
	f.Bytes += size
	f.Left += len(all)
	f.sizes[p] = size
	f.Parcels = append(f.Parcels, p)
}

// GiveBack takes back a delivery that no worker has started.
func (f *Events) GiveBack(d dispatch.Delivery) {
	at, _ := slices.BinarySearchFunc(f.Returned, d.Event.ID, func(d dispatch.Delivery, id int64) int { return cmp.Compare(d.Event.ID, id) })
	f.Returned = slices.Insert(f.Returned, at, d)
}

// Take collects the answers, and returns how many events were acknowledged and whether there was
// any answer. It begins with the parcel that was handed over last: when an event of an aggregate is
// found to be answered, so are those before it. In the other order, a row might be removed and an
// earlier one kept, and a crash would repeat that one alone.
func (f *Events) Take(answered func(*dispatch.Answer)) (acknowledged int64, news bool) {
	taken := make([]taking, len(f.Parcels))
	for i, p := range slices.Backward(f.Parcels) {
		n, answers, left := p.Take()
		taken[i] = taking{answers, left}
		acknowledged += int64(n)
		news = news || n > 0 || len(answers) > 0
	}
	f.Left = 0
	kept := f.Parcels[:0]
	for i, p := range f.Parcels {
		for k := range taken[i].answers {
			answered(&taken[i].answers[k])
		}
		f.Left += taken[i].left
		if taken[i].left > 0 {
			kept = append(kept, p)
			continue
		}
		f.Bytes -= f.sizes[p]
		delete(f.sizes, p)
		p.Empty()
		f.Keep(p)
	}
	clear(f.Parcels[len(kept):])
	f.Parcels = kept
	return acknowledged, news
}

// taking is a parcel's part in Take.
type taking struct {
	answers []dispatch.Answer
	left    int
}

// OpenIDs returns the ids of events that were read, and are neither acknowledged nor rows, nor
// about to become rows.
func (f *Events) OpenIDs() (ids []int64) {
	note := func(d *dispatch.Delivery) {
		if !d.Row {
			ids = append(ids, d.Event.ID)
		}
	}
	// The last parcel first: an event found to be delivered was delivered after those checked after
	// it. So of an aggregate only a suffix stays open, and no event before it.
	for _, p := range slices.Backward(f.Parcels) {
		p.UnderWay(note)
	}
	for i := range f.Returned {
		note(&f.Returned[i])
	}
	return ids
}

// Account returns the position to write: the highest id that r has read, and the ids up to it that are neither acknowledged
// nor stored elsewhere: invisible ones, those in memory, of which there are n, and more. The next owner reads them all again.
func (f *Events) Account(r *tail.Reader, more []int64) (head int64, open tail.Ranges, n int) {
	ids := f.OpenIDs()
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

// UnderWay returns how many events are in memory, also those that are rows.
func (f *Events) UnderWay() (n int) {
	for _, p := range f.Parcels {
		p.UnderWay(func(*dispatch.Delivery) { n++ })
	}
	return n + len(f.Returned)
}

// Size returns the approximate size of events in memory in bytes, besides their fixed sizes.
func Size(all []dispatch.Delivery) (size int) {
	for i := range all {
		size += eventSize(all[i].Event)
	}
	return size
}

func eventSize(e *delivery.Event) int {
	n := len(e.Payload) + len(e.AggregateID)
	for name, value := range e.Headers {
		n += len(name) + len(value)
	}
	return n
}
