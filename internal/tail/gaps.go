package tail

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/wire"
)

const (
	// scanAfter is the age at which a gap is worth a scan although nothing was read since: nearly all gaps are filled
	// within milliseconds.
	scanAfter = 50 * time.Millisecond
	// scanAtLeast is the longest time between two scans for the same gaps, whose transactions stay open. No delivery
	// waits for it.
	scanAtLeast = time.Second
	// scanPatience is the fraction of its age, 1/scanPatience, that a gap waits for the next scan.
	scanPatience = 4
)

// gapGroup is the common state of the gaps that one read has found.
type gapGroup struct {
	found uint64 // count of the WriterScanner after the read
	since time.Time
	read  uint64 // the number of that read
	// writers are the transactions that may still fill the gaps. They held the lock at the first scan that began after
	// the gaps were found, or after their ids were assigned, and at every later scan. Empty before such a scan. Never
	// stored.
	writers  []Writer
	xids     []int64 // transaction ids of the writers, nil if one of them is unknown
	listed   uint64  // end of the last scan that changed writers
	searched uint64  // begin of the last read that found all visible events of the gaps
	clearAt  uint64  // end of the first scan without any writer, 0 before
	lastLeft uint64  // the last read that left one of the gaps
}

// waits reports whether the gaps need not be read before one of the transactions in xids has ended: a read that began
// after the list of writers was made has found what all others have committed.
func (m *gapGroup) waits() bool { return len(m.xids) > 0 && m.searched > m.listed }

// gap is a range of invisible ids at or below the head. A piece of it has the same group.
type gap struct {
	idset.Range
	*gapGroup
}

// gaps are all gaps of a reader, in order, and none empty.
type gaps struct {
	all    []gap
	groups []*gapGroup // the groups of all gaps, each once
	// assigned has the ids up to one that the sequence had assigned before a scan: first the clear ids, then the ids that
	// wait for the writers of a scan. A gap that is found among them needs no new scan. A group without ids is nil.
	assigned [2]gap
	// above has the ids up to one that the sequence had assigned before a scan, for ids above the head: reads begin after
	// them while they wait. A group without ids is nil.
	above     gap
	findAbove bool   // the next scan determines above
	low, high []byte // parameters of the statement, nil if stale
}

// params returns the bounds of some gaps as two arrays. The bounds of all gaps are kept for the next read.
func (g *gaps) params(some []gap) (low, high []byte) {
	if len(some) < len(g.all) {
		return bounds(some)
	}
	if g.low == nil {
		g.low, g.high = bounds(g.all)
	}
	return g.low, g.high
}

// bounds returns the bounds of gaps as two arrays.
func bounds(all []gap) (low, high []byte) {
	from, to := make([]int64, len(all)), make([]int64, len(all))
	for i, a := range all {
		from[i], to[i] = a.From, a.To
	}
	return wire.AppendInt8Array(nil, from), wire.AppendInt8Array(nil, to)
}

// add adds gaps above all others. If scans have covered their ids, the gaps get the writers of these scans, or are clear.
func (g *gaps) add(ranges []idset.Range, m *gapGroup) {
	for _, a := range g.assigned {
		if a.gapGroup == nil {
			continue
		}

		var known []idset.Range
		for len(ranges) > 0 && ranges[0].From <= a.To {
			known = append(known, idset.Range{From: ranges[0].From, To: min(ranges[0].To, a.To)})
			if ranges[0].To > a.To {
				ranges = append([]idset.Range{{From: a.To + 1, To: ranges[0].To}}, ranges[1:]...)
				break
			}
			ranges = ranges[1:]
		}

		part := *m
		part.writers = a.writers
		part.xids = a.xids
		part.listed = a.listed
		part.clearAt = a.clearAt
		g.addGroup(known, &part)
	}
	g.addGroup(ranges, m)
}

// addGroup adds the gaps of one group above all others.
func (g *gaps) addGroup(ranges []idset.Range, m *gapGroup) {
	if len(ranges) == 0 {
		return
	}
	for _, r := range ranges {
		g.all = append(g.all, gap{r, m})
	}

	g.groups = append(g.groups, m)
	g.low = nil
}

// toRead returns the gaps to read, and the transactions that the other gaps wait for.
func (g *gaps) toRead() (some []gap, xids []int64) {
	for _, m := range g.groups {
		if m.waits() {
			xids = append(xids, m.xids...)
		}
	}

	if xids == nil {
		return g.all, nil
	}

	for _, a := range g.all {
		if !a.waits() {
			some = append(some, a)
		}
	}

	slices.Sort(xids)
	return some, slices.Compact(xids)
}

// stopWaiting has reads cover all gaps until the next scan: a transaction that is waited for has ended, so each read would
// be repeated.
func (g *gaps) stopWaiting() {
	for _, m := range g.groups {
		m.xids = nil
	}

	for _, a := range g.assigned {
		if a.gapGroup != nil {
			a.xids = nil
		}
	}

	g.above = gap{}
}

// first returns how many gaps a [ReachFirstGap] read covers: all clear gaps before the first gap that is not clear, or
// only that one if it comes first. The read ends the clear gaps, so it returns no event above a gap.
func (g *gaps) first(began uint64) int {
	n := slices.IndexFunc(g.all, func(a gap) bool { return !a.dead(began) })
	switch {
	case n < 0:
		return len(g.all)
	case n == 0:
		return 1
	}

	return n
}

// anyDead reports whether ids are dead if a read that began at that count does not find them.
func (g *gaps) anyDead(began uint64) bool {
	return slices.ContainsFunc(g.groups, func(m *gapGroup) bool { return m.dead(began) })
}

// read removes hits, the ids that a read found which began at that count, in order. It also removes ids up to the
// horizon that the read has not found and no transaction can fill. It returns how many of these are dead. Ids that were
// detached during the read are not dead: their gaps are scanned again.
func (g *gaps) read(hits []int64, horizon int64, began uint64, away idset.Set) (dead int64) {
	if len(hits) == 0 && !g.anyDead(began) {
		return 0
	}

	var absent []*gapGroup
	left := make([]gap, 0, len(g.all)+len(hits))
	keep := func(piece gap) {
		switch {
		case piece.From > piece.To:
		case piece.dead(began) && piece.To <= horizon && len(away.And(idset.Set{piece.Range})) == 0:
			dead += piece.To - piece.From + 1
		default:
			if piece.dead(began) && piece.To <= horizon {
				absent = append(absent, piece.gapGroup)
			}
			piece.lastLeft = began
			left = append(left, piece)
		}
	}

	for _, a := range g.all {
		for ; len(hits) > 0 && hits[0] <= a.To; hits = hits[1:] {
			keep(gap{idset.Range{From: a.From, To: hits[0] - 1}, a.gapGroup})
			a.From = hits[0] + 1
		}
		keep(a)
	}

	g.all = left
	g.low = nil
	g.groups = slices.DeleteFunc(g.groups, func(m *gapGroup) bool { return m.lastLeft != began })

	for _, m := range absent {
		m.clearAt = 0
	}

	return dead
}

// end removes all ids up to the horizon.
func (g *gaps) end(horizon int64) {
	left := g.all[:0]
	for _, a := range g.all {
		a.From = max(a.From, horizon+1)
		if a.From <= a.To && horizon < math.MaxInt64 {
			left = append(left, a)
		}
	}

	g.set(left)
}

// keep restricts the gaps above an id to some ranges.
func (g *gaps) keep(above int64, some idset.Set) {
	var left []gap
	for _, a := range g.all {
		if a.From <= above {
			left = append(left, gap{idset.Range{From: a.From, To: min(a.To, above)}, a.gapGroup})
			a.From = above + 1
		}
		for i := some.Reaching(a.From); i < len(some) && some[i].From <= a.To && a.From <= a.To; i++ {
			left = append(left, gap{idset.Range{From: max(a.From, some[i].From), To: min(a.To, some[i].To)}, a.gapGroup})
		}
	}

	g.set(left)
}

// set replaces the gaps by pieces of them.
func (g *gaps) set(left []gap) {
	kept := make(map[*gapGroup]bool, len(g.groups))
	for _, a := range left {
		kept[a.gapGroup] = true
	}

	g.all = left
	g.low = nil
	g.groups = slices.DeleteFunc(g.groups, func(m *gapGroup) bool { return !kept[m] })
}

// dead reports whether ids are dead if a read that began at that count does not find them.
func (m *gapGroup) dead(began uint64) bool { return m.clearAt > 0 && began > m.clearAt }

// apply applies a scan. Gaps that were found before it began get its writers, or lose the writers that have ended.
func (g *gaps) apply(l *WriterScan) {
	first := remainingWriters{l.Writers, l.numbers(l.Writers), true}
	rest := make(map[*Writer]remainingWriters) // by set of writers, which many groups share
	apply := func(m *gapGroup) {
		now := first
		if len(m.writers) > 0 {
			var known bool
			now, known = rest[&m.writers[0]]
			if !known {
				now = l.remain(m.writers)
				rest[&m.writers[0]] = now
			}
		}

		m.writers = now.writers
		m.xids = now.xids

		if now.changed {
			m.listed = l.ended
		}
		if len(m.writers) == 0 {
			m.clearAt = l.ended
		}
	}

	for _, m := range g.groups {
		if m.clearAt == 0 && m.found < l.began {
			apply(m)
		}
	}

	g.join()
	if l.assigned < max(g.assigned[0].To, g.assigned[1].To) { // someone may have set the sequence back
		g.assigned = [2]gap{}
	}

	g.applyAbove(l, apply)

	// Keep the writers of an earlier scan until all have ended: while transactions overlap, no scan is empty.
	for range 2 {
		if g.assigned[1].gapGroup == nil {
			g.assigned[1] = gap{idset.Range{To: l.assigned}, new(gapGroup)}
		}
		if apply(g.assigned[1].gapGroup); g.assigned[1].clearAt == 0 {
			break
		}

		g.assigned = [2]gap{g.assigned[1], {}}
	}
}

// join makes one group of the groups that wait for the same transactions. While a transaction stays open, each read
// may find gaps of a new group.
func (g *gaps) join() {
	groups := make(map[string]*gapGroup) // by transactions
	into := make(map[*gapGroup]*gapGroup)
	g.groups = slices.DeleteFunc(g.groups, func(m *gapGroup) bool {
		if !m.waits() {
			return false
		}

		key := string(wire.AppendInt8Array(nil, m.xids))
		first := groups[key]
		if first == nil {
			groups[key] = m
			return false
		}

		// Each search followed the last change of its list, so the later one follows both.
		first.listed = max(first.listed, m.listed)
		first.searched = max(first.searched, m.searched)
		into[m] = first

		return true
	})

	if len(into) == 0 {
		return
	}

	for i := range g.all {
		if first := into[g.all[i].gapGroup]; first != nil {
			g.all[i].gapGroup = first
		}
	}
}

// applyAbove applies a scan to the ids above the head.
func (g *gaps) applyAbove(l *WriterScan, apply func(*gapGroup)) {
	if l.assigned < g.above.To { // someone may have set the sequence back
		g.above = gap{}
	}

	if g.findAbove {
		g.above = gap{idset.Range{To: l.assigned}, new(gapGroup)}
		g.findAbove = false
	}

	if g.above.gapGroup == nil {
		return
	}
	if apply(g.above.gapGroup); g.above.clearAt > 0 {
		g.above = gap{}
	}
}

// forget drops all writers: their names have become meaningless.
func (g *gaps) forget() {
	for _, m := range g.groups {
		m.writers = nil
		m.xids = nil
		m.clearAt = 0
	}

	g.assigned = [2]gap{}
	g.above = gap{}
}

func byTransaction(a, b Writer) int { return strings.Compare(a.Transaction, b.Transaction) }

// next returns when a scan is worth its cost, given the time of the last one; false if none is.
func (g *gaps) next(last time.Time, reads uint64) (at time.Time, ok bool) {
	for _, m := range g.groups {
		if m.clearAt > 0 { // it waits for a read
			continue
		}

		due := m.since
		if m.read == reads {
			due = due.Add(scanAfter)
		}

		if !last.IsZero() {
			pause := min(max(last.Sub(m.since)/scanPatience, scanEvery), scanAtLeast)
			if again := last.Add(pause); again.After(due) {
				due = again
			}
		}

		if !ok || due.Before(at) {
			at = due
			ok = true
		}
	}
	return at, ok
}
