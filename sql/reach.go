package outboxsql

import (
	"cmp"
	"slices"
	"strings"
)

// reach is what one reader of a stream has acknowledged: all events up to head, except open ones.
// The spans are sorted and do not touch.
type reach struct {
	destination string
	head        int64
	open        []idRange
}

// misses reports whether the reader has not received the event yet.
func (r *reach) misses(id int64) bool {
	if id > r.head {
		return true
	}
	i, _ := slices.BinarySearchFunc(r.open, id, func(s idRange, id int64) int { return cmp.Compare(s.high-1, id) })
	return i < len(r.open) && r.open[i].low <= id
}

// readers are all readers of a stream. A destination may have several parts; an event that one of
// them misses, the destination misses.
type readers struct {
	all    []*reach
	byName map[string][]*reach
	former []formerRoutes
}

// formerly returns those destinations that are not in names and read the event by former routes.
func (r *readers) formerly(names []string, e event) (more []string) {
	for i := range r.former {
		f := &r.former[i]
		isNew := !slices.Contains(names, f.destination) && !slices.Contains(more, f.destination)
		if r.byName[f.destination] != nil && isNew && f.lead(e.id, e.eventType) {
			more = append(more, f.destination)
		}
	}
	return more
}

func newReaders(all []*reach) *readers {
	r := &readers{all: all, byName: make(map[string][]*reach)}
	for _, one := range all {
		r.byName[one.destination] = append(r.byName[one.destination], one)
	}
	return r
}

// head returns the highest head: above it, every reader misses every event.
func (r *readers) head() (head int64) {
	for _, one := range r.all {
		head = max(head, one.head)
	}
	return head
}

// of returns the names that have a position. If no name has one, or a type has no route, it returns only "", which stands for
// the unrouted scanner or the beginning of the stream. A destination that has never read the stream begins at its end, and misses
// no event that others received.
func (r *readers) of(names []string) (known []string) {
	for _, name := range names {
		if name != "" && r.byName[name] != nil {
			known = append(known, name)
		}
	}

	if len(known) == 0 {
		return []string{""}
	}

	return known
}

// missing returns those of the names that miss the event.
func (r *readers) missing(names []string, id int64) (who []string) {
	for _, name := range names {
		for _, one := range r.byName[name] {
			if one.misses(id) {
				who = append(who, name)
				break
			}
		}
	}
	return who
}

// formerRoutes are the routes by which a destination reads some ids, although the routes have ended or have left the
// configuration: an event keeps the routes of the moment when its destination, or the unrouted scanner, first read it.
type formerRoutes struct {
	destination string
	patterns    []string // that lead to the destination
	others      []string // that lead only to others
	from, until reach    // the ids behind the first, up to the second
}

// lead reports whether an event goes to the destination.
func (f *formerRoutes) lead(id int64, eventType string) bool {
	if !f.from.misses(id) || f.until.misses(id) {
		return false
	}
	mine := longest(f.patterns, eventType)
	theirs := longest(f.others, eventType)
	return mine > theirs
}

// longest returns how specific the most specific pattern is that an event type matches, -1 if it matches none.
func longest(patterns []string, eventType string) int {
	best := -1
	for _, p := range patterns {
		prefix, is := strings.CutSuffix(p, "*")
		switch {
		case p == eventType:
			return len(p) + 1 // "a.*" may be a type, too
		case is && strings.HasPrefix(eventType, prefix):
			best = max(best, len(prefix))
		}
	}

	return best
}

// disputed returns the ids up to the highest head that some readers miss and others do not.
func (r *readers) disputed() (ranges []idRange) {
	// The change at an id: the number of readers that miss the following ids.
	changes := make(map[int64]int)
	top := r.head() + 1
	for _, one := range r.all {
		for _, s := range append(slices.Clip(one.open), idRange{one.head + 1, top}) {
			changes[s.low]++
			changes[s.high]--
		}
	}

	at := make([]int64, 0, len(changes))
	for id := range changes {
		at = append(at, id)
	}

	slices.Sort(at)

	missing := 0
	for i, id := range at {
		missing += changes[id]
		if missing > 0 && missing < len(r.all) && i+1 < len(at) {
			ranges = append(ranges, idRange{id, at[i+1]})
		}
	}

	return ranges
}
