package stream

import (
	"slices"

	"github.com/notifyd/notifyd/internal/tail"
)

// account returns the position to write: the highest id that was read, and the ids up to it that
// are neither acknowledged nor stored elsewhere. Invisible ids are open like those in flight: the
// next owner reads both again. Rows that are still to be written are open too, which pending
// includes, unless they are written in the same transaction.
func (u *unit) account(pending bool) (head int64, open tail.Ranges) {
	ids := u.gate.flight.openIDs()
	if pending {
		ids = append(ids, u.shelf.pending.fresh...)
	}
	slices.Sort(ids)
	gaps := u.reader.Gaps()
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
	return u.reader.Head(), open
}
