package tail

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/internal/wire"
)

const (
	// lookAfter is the age at which a gap is worth a look even if nothing was read since it was
	// seen: nearly all gaps are filled within milliseconds.
	lookAfter = 50 * time.Millisecond
	// lookSeldom is the longest time between two looks for the same gaps, whose transactions stay
	// open: no delivery waits for it.
	lookSeldom = time.Second
	// lookPatience is the fraction of its age, 1/lookPatience, that a gap waits for the next look.
	lookPatience = 4
)

// mark is the state of the gaps that one read has found.
type mark struct {
	seen  uint64 // by the count of Witnesses, after the read
	since time.Time
	read  uint64 // the number of that read
	// holders may still fill the gaps: transactions that held the lock at a look that began after
	// the gaps were seen, and in every look since. They are never stored.
	holders []Holder
	looked  bool   // there was such a look
	clear   uint64 // end of the look that found none of them any more, 0 before
	kept    uint64 // the last read that left one of its gaps
}

// gap is a range of invisible ids at or below the head. A piece of it has its mark.
type gap struct {
	Range
	*mark
}

// gaps are all gaps, in order, and none empty.
type gaps struct {
	all       []gap
	marks     []*mark // the marks of all gaps, each once
	low, high []byte  // parameters of the statement, nil where they are stale
}

// params returns the bounds of all gaps as two arrays.
func (g *gaps) params() (low, high []byte) {
	if g.low == nil {
		from, to := make([]int64, len(g.all)), make([]int64, len(g.all))
		for i, a := range g.all {
			from[i], to[i] = a.From, a.To
		}
		g.low, g.high = wire.AppendInt8Array(nil, from), wire.AppendInt8Array(nil, to)
	}
	return g.low, g.high
}

// add adds gaps above all others.
func (g *gaps) add(ranges []Range, m *mark) {
	if len(ranges) == 0 {
		return
	}
	for _, r := range ranges {
		g.all = append(g.all, gap{r, m})
	}
	g.marks = append(g.marks, m)
	g.low = nil
}

// ends reports whether ids are dead that a read that began at that count does not find.
func (g *gaps) ends(began uint64) bool {
	return slices.ContainsFunc(g.marks, func(m *mark) bool { return m.over(began) })
}

// read removes the ids that a read that began at that count has found: hits, in order. It also
// removes ids that the read has not found up to the horizon, and that no transaction can fill any
// more. It returns how many of these are dead. Ids that were away during the read are not: their gaps are looked at again.
func (g *gaps) read(hits []int64, horizon int64, began uint64, away Ranges) (dead int64) {
	if len(hits) == 0 && !g.ends(began) {
		return 0
	}
	var absent []*mark
	left := make([]gap, 0, len(g.all)+len(hits))
	keep := func(piece gap) {
		switch {
		case piece.From > piece.To:
		case piece.over(began) && piece.To <= horizon && len(away.And(Ranges{piece.Range})) == 0:
			dead += piece.To - piece.From + 1
		default:
			if piece.over(began) && piece.To <= horizon {
				absent = append(absent, piece.mark)
			}
			piece.kept = began
			left = append(left, piece)
		}
	}
	for _, a := range g.all {
		for ; len(hits) > 0 && hits[0] <= a.To; hits = hits[1:] {
			keep(gap{Range{a.From, hits[0] - 1}, a.mark})
			a.From = hits[0] + 1
		}
		keep(a)
	}
	g.all, g.low = left, nil
	g.marks = slices.DeleteFunc(g.marks, func(m *mark) bool { return m.kept != began })
	for _, m := range absent {
		m.looked, m.clear = false, 0
	}
	return dead
}

// end removes all ids up to the horizon.
func (g *gaps) end(horizon int64) {
	left := g.all[:0]
	for _, a := range g.all {
		if a.From = max(a.From, horizon+1); a.From <= a.To && horizon < math.MaxInt64 {
			left = append(left, a)
		}
	}
	g.set(left)
}

// keep leaves of the gaps above an id no more than is in some ranges.
func (g *gaps) keep(above int64, some Ranges) {
	var left []gap
	for _, a := range g.all {
		if a.From <= above {
			left = append(left, gap{Range{a.From, min(a.To, above)}, a.mark})
			a.From = above + 1
		}
		for i := some.Reaching(a.From); i < len(some) && some[i].From <= a.To && a.From <= a.To; i++ {
			left = append(left, gap{Range{max(a.From, some[i].From), min(a.To, some[i].To)}, a.mark})
		}
	}
	g.set(left)
}

// set replaces the gaps by pieces of them.
func (g *gaps) set(left []gap) {
	kept := make(map[*mark]bool, len(g.marks))
	for _, a := range left {
		kept[a.mark] = true
	}
	g.all, g.low = left, nil
	g.marks = slices.DeleteFunc(g.marks, func(m *mark) bool { return !kept[m] })
}

// over reports whether the ids that a read that began at that count does not find are dead.
func (m *mark) over(began uint64) bool { return m.clear > 0 && began > m.clear }

// looked applies a look. Gaps that were seen before it began get witnesses, or lose those that have
// ended.
func (g *gaps) looked(l *Look) {
	rest := make(map[*Holder][]Holder) // by set of holders, which many marks share
	for _, m := range g.marks {
		if m.clear > 0 || m.seen >= l.began {
			continue
		}
		switch {
		case !m.looked:
			m.looked, m.holders = true, l.Holders
		case len(m.holders) > 0:
			left, ok := rest[&m.holders[0]]
			if !ok {
				left = l.remaining(m.holders)
				rest[&m.holders[0]] = left
			}
			m.holders = left
		}
		if len(m.holders) == 0 {
			m.clear = l.ended
		}
	}
}

// forget drops all witnesses: their names have become meaningless.
func (g *gaps) forget() {
	for _, m := range g.marks {
		m.looked, m.holders, m.clear = false, nil, 0
	}
}

func byTransaction(a, b Holder) int { return strings.Compare(a.Transaction, b.Transaction) }

// next returns when a look is worth its cost, given the last one; false if none is.
func (g *gaps) next(last time.Time, reads uint64) (at time.Time, ok bool) {
	for _, m := range g.marks {
		if m.clear > 0 { // it waits for a read
			continue
		}
		due := m.since
		if m.read == reads {
			due = due.Add(lookAfter)
		}
		if !last.IsZero() {
			pause := min(max(last.Sub(m.since)/lookPatience, lookEvery), lookSeldom)
			if again := last.Add(pause); again.After(due) {
				due = again
			}
		}
		if !ok || due.Before(at) {
			at, ok = due, true
		}
	}
	return at, ok
}
