package outboxsql

import (
	"slices"

	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/routing"
)

// reader is what one reader of a stream has acknowledged.
type reader struct {
	idset.Watermark

	destination string
}

// readers are all readers of a stream. A destination may have several parts; an event that one of
// them misses, the destination misses.
type readers struct {
	all    []reader
	byName map[string][]reader
	// former are the routes by which destinations read some ids, although the routes have ended or have left the
	// configuration: an event keeps the routes of the moment when its destination, or the unrouted scanner, first read it.
	former []routing.Range
}

// formerly returns those destinations that are not in names and read the event by former routes.
func (r *readers) formerly(names []string, e event) (more []string) {
	for i := range r.former {
		f := &r.former[i]
		isNew := !slices.Contains(names, f.Destination) && !slices.Contains(more, f.Destination)
		if r.byName[f.Destination] != nil && isNew && f.Reads(e.eventType, e.id) {
			more = append(more, f.Destination)
		}
	}
	return more
}

func newReaders(all []reader) *readers {
	r := &readers{all: all, byName: make(map[string][]reader)}
	for _, one := range all {
		r.byName[one.destination] = append(r.byName[one.destination], one)
	}
	return r
}

// head returns the highest head: above it, every reader misses every event.
func (r *readers) head() (head int64) {
	for i := range r.all {
		head = max(head, r.all[i].Head)
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
		if slices.ContainsFunc(r.byName[name], func(one reader) bool { return !one.Has(id) }) {
			who = append(who, name)
		}
	}
	return who
}

// disputed returns the ids that some readers have and others miss.
func (r *readers) disputed() idset.Set {
	if len(r.all) == 0 {
		return nil
	}

	some := r.all[0].Watermark
	every := r.all[0].Watermark
	for _, one := range r.all[1:] {
		some = some.Or(one.Watermark)
		every = every.And(one.Watermark)
	}

	return every.Missing(some.Head).Minus(some.Open)
}
