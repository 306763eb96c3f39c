package dispatch

import (
	"cmp"
	"slices"
	"time"
)

// Range is a range of ids, both ends included.
type Range struct{ From, To int64 }

// Late is a fresh event that a claim saw among the ids that were passed over
// before. It is not claimed.
type Late struct {
	ID            int64
	AggregateType string
	AggregateID   string
}

const (
	// dateAfter is how old a gap has to be before a snapshot can tell whose it
	// is: a statement draws its id a moment before it has a transaction id. On a
	// machine with too much to do, the moment is as long as the queue for a
	// processor: 50 ms were not enough with forty in it.
	dateAfter = 500 * time.Millisecond
	// gapStays is how long a gap is looked into with every claim. After that
	// it belongs to a long transaction, and is looked into when that has ended.
	gapStays = 2 * time.Second
	// maxGaps bounds the ranges that a claim looks into; beyond it neighbours
	// are joined.
	maxGaps = 256
	// maxOldGaps bounds those that wait for long transactions.
	maxOldGaps = 4096
)

// gap is a range of ids that nobody had committed when the sweep went past.
type gap struct {
	Range
	since time.Time
	known time.Time // zero, or when it came to be looked into: claims on their way do not look into it
	dated time.Time // when it was found out whose it is; zero: not yet
	under []uint64  // transactions that may yet commit it, as of then
	left  int       // how many of them go on, as far as is known
	old   bool      // looked into only when one of them has ended
}

// front is how far a sweep has come, and where events may still come up behind
// it. Events of one aggregate are written one transaction after the other, so
// when a claim meets an event, all earlier ones of its aggregate are there to
// be seen: behind the front they are in a gap.
type front struct {
	head int64 // everything up to here has been met, but for the gaps
	gaps []gap // in the order of ids, and apart
}

// asks returns the ranges to be looked into with a claim that begins behind after.
func (f *front) asks(after int64) []Range {
	var ranges []Range
	for i := range f.gaps {
		if g := &f.gaps[i]; !g.old && g.From <= after {
			ranges = append(ranges, Range{g.From, min(g.To, after)})
		}
	}
	return ranges
}

// went notes that a claim has met these works, in the order of ids, and that
// there was nothing else to be met up to last.
func (f *front) went(now time.Time, work []Work, last int64) {
	next := f.head
	for i := range work {
		id := work[i].Event.ID
		if id <= f.head {
			f.fill(id)
			continue
		}
		if id > next+1 {
			f.add(gap{Range: Range{next + 1, id - 1}, since: now})
		}
		next = max(next, id)
	}
	if last > next {
		f.add(gap{Range: Range{next + 1, last}, since: now})
	}
	f.head = max(f.head, last)
}

// reach makes the front one that has come to id, if it is not that far: a lane may
// lag from an event on that is beyond all that has been met.
func (f *front) reach(now time.Time, id int64) {
	if id <= f.head {
		return
	}
	f.add(gap{Range: Range{f.head + 1, id}, since: now})
	f.head = id
}

// fill takes an id that was met after all out of its gap.
func (f *front) fill(id int64) {
	i, found := slices.BinarySearchFunc(f.gaps, id, func(g gap, id int64) int { return cmp.Compare(g.From, id) })
	if !found {
		i--
	}
	if i < 0 || f.gaps[i].To < id {
		return
	}
	g := &f.gaps[i]
	switch {
	case g.From == g.To:
		f.gaps = slices.Delete(f.gaps, i, i+1)
	case g.From == id:
		g.From++
	case g.To == id:
		g.To--
	default:
		rest := *g
		rest.From, g.To = id+1, id-1
		f.gaps = slices.Insert(f.gaps, i+1, rest)
	}
}

// add appends a gap, whose ids are above all others, and joins neighbours when
// they have become many.
func (f *front) add(g gap) {
	f.gaps = append(f.gaps, g)
	if len(f.gaps) > maxGaps+maxOldGaps {
		f.join()
	}
}

// join halves the number of gaps.
func (f *front) join() {
	kept := f.gaps[:0]
	for i := 0; i < len(f.gaps); i += 2 {
		g := f.gaps[i]
		if i+1 < len(f.gaps) {
			g.join(&f.gaps[i+1])
		}
		kept = append(kept, g)
	}
	clear(f.gaps[len(kept):])
	f.gaps = kept
}

// unite makes one of gaps that overlap: two fronts that were apart often have
// the same ones.
func (f *front) unite() {
	kept := f.gaps[:0]
	for _, g := range f.gaps {
		if n := len(kept); n > 0 && g.From <= kept[n-1].To {
			kept[n-1].join(&g)
			continue
		}
		kept = append(kept, g)
	}
	clear(f.gaps[len(kept):])
	f.gaps = kept
}

// join makes g reach to the end of o, which does not begin before it, and wait for
// whatever either of them waits for.
func (g *gap) join(o *gap) {
	if g.old != o.old { // one of them was not looked into
		g.known = time.Now()
	}
	if o.known.After(g.known) {
		g.known = o.known
	}
	g.To = max(g.To, o.To)
	if o.since.After(g.since) {
		g.since = o.since
	}
	if g.dated.IsZero() || o.dated.IsZero() {
		g.dated, g.under = time.Time{}, nil
	} else {
		g.under = union(g.under, o.under)
		if o.dated.After(g.dated) {
			g.dated = o.dated
		}
	}
	g.old, g.left = g.old && o.old, len(g.under)
}

func union(a, b []uint64) []uint64 {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// saw takes the snapshot of a claim that was asked at the given time to look
// into the gaps up to checked, and what it found there. It returns false if a gap
// should have been among them that was not: a long transaction has ended.
func (f *front) saw(asked time.Time, snap Snapshot, checked int64, late []Late) bool {
	sure := true
	kept := f.gaps[:0]
	young := 0
	for _, g := range f.gaps {
		// Claims overtake one another: what an older one did not see is no proof
		// that it is not there, whatever a newer one has told of transactions.
		left := len(g.under)
		for _, xid := range g.under {
			if snap.ended(xid) {
				left--
			}
		}
		news := !g.dated.IsZero() && left < g.left
		g.left = min(g.left, left)
		seen := asked.After(g.since) && asked.After(g.known) && g.To <= checked && !anyIn(late, g.Range)
		switch {
		case g.old && news:
			g.old, g.since, sure = false, time.Now(), false
		case g.old:
		case g.dated.IsZero() && asked.Sub(g.since) >= dateAfter:
			g.dated, g.under, g.left = time.Now(), slices.Clone(snap.Running), len(snap.Running)
		case g.dated.IsZero() || !asked.After(g.dated) || !seen:
		case left == 0:
			continue // all that could come has been seen
		case asked.Sub(g.since) >= gapStays:
			g.old = true
		}
		if !g.old {
			young++
		}
		kept = append(kept, g)
	}
	clear(f.gaps[len(kept):])
	f.gaps = kept
	if young > maxGaps {
		f.join()
	}
	return sure
}

func anyIn(late []Late, r Range) bool {
	return slices.ContainsFunc(late, func(l Late) bool { return l.ID >= r.From && l.ID <= r.To })
}

// back goes back to id, if it is further.
func (f *front) back(id int64) {
	if id >= f.head {
		return
	}
	f.head = id
	f.gaps = slices.DeleteFunc(f.gaps, func(g gap) bool { return g.From > id })
	for i := range f.gaps {
		f.gaps[i].To = min(f.gaps[i].To, id)
	}
}

// merge takes the gaps of a front that was apart, and what only the other has met.
func (f *front) merge(o *front) {
	now, own := time.Now(), f.gaps
	for _, g := range o.gaps {
		if !covers(own, g.Range) {
			g.known = now
		}
		f.gaps = append(f.gaps, g)
	}
	if o.head < f.head && o.head != beforeAll {
		f.gaps = append(f.gaps, gap{Range: Range{o.head + 1, f.head}, since: time.Now()})
	}
	slices.SortFunc(f.gaps, func(a, b gap) int { return cmp.Compare(a.From, b.From) })
	f.unite()
	for len(f.gaps) > maxGaps+maxOldGaps {
		f.join()
	}
}

// covers reports whether one of the gaps, which are in order, has all of r.
func covers(gaps []gap, r Range) bool {
	i, found := slices.BinarySearchFunc(gaps, r.From, func(g gap, id int64) int { return cmp.Compare(g.From, id) })
	if !found {
		i--
	}
	return i >= 0 && !gaps[i].old && r.To <= gaps[i].To
}

// reset begins again behind id.
func (f *front) reset(id int64) { f.head, f.gaps = id, nil }

// doubt is there from the moment when somebody else may have locked events that
// are this relay's to deliver, until all transactions of that moment have ended.
// Its zero value is no doubt.
type doubt struct {
	raised bool
	xid    uint64 // 0: the moment has yet to be dated
}

func (d *doubt) raise() { *d = doubt{raised: true} }

func (d *doubt) saw(snap Snapshot) {
	switch {
	case !d.raised:
	case d.xid == 0:
		d.xid = snap.Xmax
	case snap.Xmin >= d.xid:
		*d = doubt{}
	}
}

// Snapshot says which transactions had ended when a claim began: all below
// Xmin, none from Xmax on, and of those between them all but Running.
type Snapshot struct {
	Xmin, Xmax uint64
	Running    []uint64
}

func (s Snapshot) ended(xid uint64) bool {
	return xid < s.Xmin || xid < s.Xmax && !slices.Contains(s.Running, xid)
}
