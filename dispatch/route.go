package dispatch

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/notifyd/notifyd/delivery"
)

// router finds the lanes of an event type: exact pattern first, then the longest prefix, then "*". Only its cache
// changes while the relay runs.
type router struct {
	exact    map[string]*route
	prefixes []prefixRoute // longest first
	star     *route        // nil for none
	filtered bool          // some route has a filter

	mu   sync.RWMutex
	seen map[string]*route // cached routes; without lanes for types that no pattern matches
}

// route is where the events of a pattern go.
type route struct {
	lanes   []*lane
	views   []QueueLane       // the lanes, for engines
	filters []delivery.Filter // by lane, as FilterOf returns them; nil for none
	plain   bool              // a route without a filter exists
}

type prefixRoute struct {
	prefix string // including the dot: "order."
	route  *route
}

// maxSeen bounds the cache. Event types are few, unless a writer puts ids into them; finding such a route again costs
// little.
const maxSeen = 4096

func newRouter() *router {
	return &router{exact: make(map[string]*route), seen: make(map[string]*route)}
}

// add registers a checked pattern: at most once without a filter, and with filters once per destination.
func (r *router) add(pattern string, lanes []*lane, filter delivery.Filter) error {
	w := r.at(pattern)
	if w.plain && filter == nil {
		return fmt.Errorf("%w %q: it has a route: name all its destinations in one call", delivery.ErrPattern, pattern)
	}

	for _, l := range lanes {
		if slices.Contains(w.lanes, l) {
			return fmt.Errorf("%w %q: it leads to the destination %q already: one route to each, with all its conditions in one filter",
				delivery.ErrPattern, pattern, l.dest.Name)
		}
	}

	w.plain = w.plain || filter == nil

	for _, l := range lanes {
		f := l.guarded(both(l.dest.Filter, filter), pattern)
		r.filtered = r.filtered || f != nil
		w.lanes = append(w.lanes, l)
		w.views = append(w.views, l)
		w.filters = append(w.filters, f)
	}

	return nil
}

// at returns the route of a pattern, and creates it if necessary.
func (r *router) at(pattern string) *route {
	prefix, isPrefix := strings.CutSuffix(pattern, "*")
	switch {
	case pattern == "*":
		if r.star == nil {
			r.star = &route{}
		}
		return r.star

	case isPrefix:
		for _, p := range r.prefixes {
			if p.prefix == prefix {
				return p.route
			}
		}

		w := &route{}
		r.prefixes = append(r.prefixes, prefixRoute{prefix, w})
		sort.Slice(r.prefixes, func(i, j int) bool { return len(r.prefixes[i].prefix) > len(r.prefixes[j].prefix) })
		return w

	default:
		if r.exact[pattern] == nil {
			r.exact[pattern] = &route{}
		}
		return r.exact[pattern]
	}
}

// routeOf returns the route of an event type, without lanes if no pattern matches. firstTime is true the first time
// that a type is seen.
func (r *router) routeOf(eventType string) (w *route, firstTime bool) {
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

// patterns returns the patterns whose routes name a destination.
func (r *router) patterns(name string) []string {
	all := []string{}
	leads := func(w *route) bool {
		return slices.ContainsFunc(w.lanes, func(l *lane) bool { return l.dest.Name == name })
	}

	for pattern, w := range r.exact {
		if leads(w) {
			all = append(all, pattern)
		}
	}

	for _, p := range r.prefixes {
		if leads(p.route) {
			all = append(all, p.prefix+"*")
		}
	}

	if r.star != nil && leads(r.star) {
		all = append(all, "*")
	}

	slices.Sort(all)
	return all
}

// filters reports whether the lane, or any route to it, has a filter.
func (r *router) filters(to *lane) bool {
	filtered := func(w *route) bool {
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

	for _, p := range r.prefixes {
		if filtered(p.route) {
			return true
		}
	}

	if r.star != nil && filtered(r.star) {
		return true
	}
	return to.dest.Filter != nil
}

// find returns the route of an event type from the patterns.
func (r *router) find(eventType string) *route {
	if w, ok := r.exact[eventType]; ok {
		return w
	}

	for _, p := range r.prefixes {
		if strings.HasPrefix(eventType, p.prefix) {
			return p.route
		}
	}

	if r.star != nil {
		return r.star
	}

	return &route{}
}

// types returns the event types seen so far whose lanes satisfy f.
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
