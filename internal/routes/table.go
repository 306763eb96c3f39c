package routes

import (
	"iter"
	"slices"

	"github.com/notifyd/notifyd/internal/routing"
)

// rememberedTypes bounds the verdicts that a [Table] caches.
const rememberedTypes = 500

// Table decides which destinations get an event, or are owed one. One goroutine uses it.
type Table struct {
	ranges  []Range
	readers []reader           // by destination
	byType  map[string]Verdict // a cache
}

// reader is a destination and the indices of its ranges in all.
type reader struct {
	ranges []int // its stored ranges, in order
	newest int   // the newest stored range; -1: none
	coming int   // the expected range; -1: none
}

// Verdict has, for each range of a table, where the range sends events of one type.
type Verdict []routing.Way

// NewTable returns a table of the ranges that [Read] returns for all destinations.
func NewTable(all []Range) Table {
	t := Table{ranges: all, byType: make(map[string]Verdict)}
	for i := range all {
		if i == 0 || all[i].Destination != all[i-1].Destination {
			t.readers = append(t.readers, reader{newest: -1, coming: -1})
		}

		r := &t.readers[len(t.readers)-1]
		if all[i].since == expected {
			r.coming = i
			continue
		}

		r.ranges = append(r.ranges, i)
		r.newest = i
	}

	return t
}

// Is reports whether the table has exactly these ranges.
func (t *Table) Is(all []Range) bool {
	return slices.EqualFunc(all, t.ranges, func(a, b Range) bool { return a.equal(&b) })
}

// Waiting returns the ranges that are not handed yet. The caller may set their Handed.
func (t *Table) Waiting() iter.Seq[*Range] {
	return func(yield func(*Range) bool) {
		for i := range t.ranges {
			if s := &t.ranges[i]; s.waits() && !yield(s) {
				return
			}
		}
	}
}

// Of returns the verdict on a type.
func (t *Table) Of(eventType string) Verdict {
	if v, ok := t.byType[eventType]; ok {
		return v
	}

	v := make(Verdict, len(t.ranges))
	for i := range t.ranges {
		v[i] = t.ranges[i].Way(eventType)
	}
	if len(t.byType) < rememberedTypes {
		t.byType[eventType] = v
	}

	return v
}

// gets reports whether the reader gets such events now.
func (v Verdict) gets(r *reader) bool { return r.newest >= 0 && v[r.newest] == routing.Here }

// awaits reports whether the reader will get such events, but does not yet.
func (v Verdict) awaits(r *reader) bool {
	return r.coming >= 0 && v[r.coming] == routing.Here && !v.gets(r)
}

// Gotten reports whether any destination gets such events now.
func (t *Table) Gotten(v Verdict) bool {
	return slices.ContainsFunc(t.readers, func(r reader) bool { return v.gets(&r) })
}

// Awaited reports whether any destination will get such events, but does not yet.
func (t *Table) Awaited(v Verdict) bool {
	return slices.ContainsFunc(t.readers, func(r reader) bool { return v.awaits(&r) })
}

// Takers returns the newest range of each destination that gets such events now, and whose position will not pass this
// event.
func (t *Table) Takers(v Verdict, id int64) iter.Seq[*Range] {
	return func(yield func(*Range) bool) {
		for i := range t.readers {
			r := &t.readers[i]
			if v.gets(r) && !t.reads(v, r, id) && !yield(&t.ranges[r.newest]) {
				return
			}
		}
	}
}

// reads reports whether the reader's position passes the event by a range that routes it here.
func (t *Table) reads(v Verdict, r *reader, id int64) bool {
	return slices.ContainsFunc(r.ranges, func(i int) bool { return v[i] == routing.Here && t.ranges[i].Contains(id) })
}

// read reports whether any reader's position passes the event by a range that routes it here.
func (t *Table) read(v Verdict, id int64) bool {
	return slices.ContainsFunc(t.readers, func(r reader) bool { return t.reads(v, &r, id) })
}

// owed reports whether the reader, which gets such events or will, passed this one while it had no destination: no
// reader reads it, or the readers that do have gained their route later.
func (t *Table) owed(v Verdict, r *reader, id int64, read bool) bool {
	latest := r.newest
	if v.awaits(r) {
		latest = r.coming
	}
	if latest < 0 || v[latest] != routing.Here {
		return false
	}
	if !t.ranges[latest].From.Has(id) || t.reads(v, r, id) {
		return false
	}
	if !read {
		return true
	}

	passed := false
	for _, i := range r.ranges {
		if t.ranges[i].Contains(id) {
			if v[i] != routing.Nowhere {
				return false
			}
			passed = true
		}
	}

	return passed
}

// Unrouted reports whether the scanner must store the event, because a destination may need it whose position does not
// pass it.
func (t *Table) Unrouted(v Verdict, id int64) bool {
	read := t.read(v, id)
	return !read || slices.ContainsFunc(t.readers, func(r reader) bool { return t.owed(v, &r, id, read) })
}

// Due reports whether a destination that gets such events now is owed this one. It is late if all others have been handed
// to the destination.
func (t *Table) Due(v Verdict, id int64) (due, late bool) {
	read := t.read(v, id)
	for i := range t.readers {
		r := &t.readers[i]
		if v.gets(r) && t.owed(v, r, id, read) {
			due = true
			late = late || t.ranges[r.newest].Handed
		}
	}

	return due, late
}

// Settled reports whether a destination reads all events of the type above the id, and no destination is owed one.
func (t *Table) Settled(v Verdict, id int64) bool {
	some := false
	for i := range t.readers {
		r := &t.readers[i]
		if v.awaits(r) && t.ranges[r.coming].From.Head > id {
			return false
		}
		if v.gets(r) && t.ranges[r.newest].From.Head > id {
			return false
		}

		some = some || v.gets(r)
	}

	return some
}
