package stream

import (
	"slices"
)

// account returns the position as it is to be written: the highest id that was read,
// and what up to there is not acknowledged and not stored elsewhere. Ids that nobody
// has seen are open like those that are under way: whoever takes over reads both again.
// So is what is to be stored and is not yet: that is pending, unless it is written in the
// same transaction.
func (u *unit) account(pending bool) (head int64, open Ranges) { //nolint:revive // which of two it is
	ids := u.flight.openIDs()
	if pending {
		ids = append(ids, u.shelf.pending.fresh...)
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
