package dispatch

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/notifyd/notifyd/delivery"
)

// router finds the lanes of an event type: exact pattern first, then the longest prefix, then "*".
// It is built before the relay runs and not changed while it runs, apart from the cache.
type router struct {
	exact    map[string]*way
	prefixes []prefixRoute // longest first
	star     *way          // nil for none
	filtered bool          // some way has a filter

	mu   sync.RWMutex
	seen map[string]*way // cached answers; without lanes for types without a route
}

// way is where the events of a pattern go.
type way struct {
	lanes   []*lane
	views   []QueueLane       // the same
	filters []delivery.Filter // by lane, as FilterOf returns them; nil for none
	plain   bool              // there is a route without a filter of its own
}

type prefixRoute struct {
	prefix string // including the dot: "order."
	way    *way
}

// maxSeen bounds the cache. Event types are few; where they are not, because a writer puts ids into
// them, finding the route again costs little.
const maxSeen = 4096

func newRouter() *router {
	return &router{exact: make(map[string]*way), seen: make(map[string]*way)}
}

// add registers a checked pattern: once without a filter, and as often as there are destinations
// with one.
func (r *router) add(pattern string, lanes []*lane, filter delivery.Filter) error {
	w := r.at(pattern)
	if w.plain && filter == nil {
		return fmt.Errorf("%w %q: the pattern has a route already", delivery.ErrPattern, pattern)
	}
	for _, l := range lanes {
		if slices.Contains(w.lanes, l) {
			return fmt.Errorf("%w %q: the pattern leads to the destination %q already", delivery.ErrPattern, pattern, l.dest.Name)
		}
	}
	w.plain = w.plain || filter == nil
	for _, l := range lanes {
		f := l.counts(both(l.dest.Filter, filter))
		r.filtered = r.filtered || f != nil
		w.lanes, w.views, w.filters = append(w.lanes, l), append(w.views, l), append(w.filters, f)
	}
	return nil
}

// at returns the way of a pattern, a new one if it has none.
func (r *router) at(pattern string) *way {
	prefix, isPrefix := strings.CutSuffix(pattern, "*")
	switch {
	case pattern == "*":
		if r.star == nil {
			r.star = &way{}
		}
		return r.star
	case isPrefix:
		for _, p := range r.prefixes {
			if p.prefix == prefix {
				return p.way
			}
		}
		w := &way{}
		r.prefixes = append(r.prefixes, prefixRoute{prefix, w})
		sort.Slice(r.prefixes, func(i, j int) bool { return len(r.prefixes[i].prefix) > len(r.prefixes[j].prefix) })
		return w
	default:
		if r.exact[pattern] == nil {
			r.exact[pattern] = &way{}
		}
		return r.exact[pattern]
	}
}

// wayOf returns the way of an event type, without lanes if no pattern matches. firstTime is true the first
// time that a type is seen.
func (r *router) wayOf(eventType string) (w *way, firstTime bool) {
	r.mu.RLock()
	w, ok := r.seen[eventType]
	r.mu.RUnlock()
	if ok {
		return w, false
	}
	w = r.find(eventType)
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.seen[eventType]; !ok && len(r.seen) < maxSeen {
		r.seen[eventType] = w
		return w, true
	}
	return w, false
}

// patterns returns the patterns that lead to a destination.
func (r *router) patterns(name string) []string {
	all := []string{}
	leads := func(w *way) bool {
		return slices.ContainsFunc(w.lanes, func(l *lane) bool { return l.dest.Name == name })
	}
	for pattern, w := range r.exact {
		if leads(w) {
			all = append(all, pattern)
		}
	}
	for _, p := range r.prefixes {
		if leads(p.way) {
			all = append(all, p.prefix+"*")
		}
	}
	if r.star != nil && leads(r.star) {
		all = append(all, "*")
	}
	slices.Sort(all)
	return all
}

// filters reports whether any route to a lane has a filter, or the lane itself.
func (r *router) filters(to *lane) bool {
	filtered := func(w *way) bool {
		for i, l := range w.lanes {
			if l == to && w.filters[i] != nil {
				return true
			}
		}
		return false
	}
	for _, w := range r.exact {
		if filtered(w) {
			return true
		}
	}
	return slices.ContainsFunc(r.prefixes, func(p prefixRoute) bool { return filtered(p.way) }) || r.star != nil && filtered(r.star) || to.dest.Filter != nil
}

// find returns the way of an event type by the patterns.
func (r *router) find(eventType string) *way {
	if w, ok := r.exact[eventType]; ok {
		return w
	}
	for _, p := range r.prefixes {
		if strings.HasPrefix(eventType, p.prefix) {
			return p.way
		}
	}
	if r.star != nil {
		return r.star
	}
	return &way{}
}

// types returns the event types seen so far for whose lanes f returns true.
func (r *router) types(f func(lanes []QueueLane) bool) []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var names []string
	for name, w := range r.seen {
		if w.views != nil && f(w.views) {
			names = append(names, name)
		}
	}
	return names
}
