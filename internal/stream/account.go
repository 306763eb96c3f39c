package stream

import (
	"slices"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
)

// account returns the position as it is to be written: the highest id that was read,
// and what up to there is not acknowledged and not stored elsewhere. Ids that nobody
// has seen are open like those that are under way: whoever takes over reads both again.
// So is what is to be stored and is not yet: that is pending, unless it is written in the
// same transaction.
func (u *unit) account(pending bool) (head int64, open Ranges) { //nolint:revive // which of two it is
	ids := u.openIDs()
	if pending {
		ids = append(ids, u.pending.fresh...)
	}
	slices.Sort(ids)
	gaps := u.reader.Gaps()
	open = make(Ranges, 0, gaps.Len()+len(ids)/8)
	add := func(r Range) {
		if n := len(open); n > 0 && r.From <= open[n-1].To+1 {
			open[n-1].To = max(open[n-1].To, r.To)
			return
		}
		open = append(open, r)
	}
	for _, g := range gaps {
		for len(ids) > 0 && ids[0] < g.From {
			add(Range{ids[0], ids[0]})
			ids = ids[1:]
		}
		add(g)
	}
	for _, id := range ids {
		add(Range{id, id})
	}
	return u.reader.Head(), open
}

// openIDs returns the ids of events that were read, and are neither acknowledged nor
// rows, nor about to be rows.
func (u *unit) openIDs() (ids []int64) {
	note := func(d *dispatch.Delivery) {
		if !d.Row {
			ids = append(ids, d.Event.ID)
		}
	}
	// The last first: what is found to be delivered was delivered after those that are
	// looked at then, so that of an aggregate the end stays open, and nothing before it alone.
	for _, p := range slices.Backward(u.parcels) {
		p.UnderWay(note)
	}
	for i := range u.again {
		note(&u.again[i])
	}
	return ids
}

// eventBytes is about how much memory an event takes beside its fixed size.
func eventBytes(e *delivery.Event) int {
	n := len(e.Payload) + len(e.AggregateID)
	for name, value := range e.Headers {
		n += len(name) + len(value)
	}
	return n
}
