package dispatch

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
)

// ErrPattern is wrapped by errors about a pattern that cannot be used.
var ErrPattern = errors.New("invalid pattern")

// CheckPattern returns an error that wraps [ErrPattern] unless pattern is an
// event type ("order.created"), a prefix ("order.*") or "*".
func CheckPattern(pattern string) error {
	body := strings.TrimSuffix(pattern, ".*")
	switch {
	case pattern == "*":
		return nil
	case body == "":
		return fmt.Errorf("%w %q: give an event type, a prefix such as order.*, or *", ErrPattern, pattern)
	case strings.ContainsAny(body, "* \t\r\n"):
		return fmt.Errorf("%w %q: a star may stand alone or end the pattern as .*, and there is no white space", ErrPattern, pattern)
	}
	return nil
}

// BestPattern returns the place of the pattern that an event type is routed by,
// -1 if none matches: the type itself, else the longest prefix, else "*". It is
// for those who look at routes without a relay; the patterns must be valid.
func BestPattern(patterns []string, eventType string) int {
	best, length := -1, -1
	for i, p := range patterns {
		prefix, isPrefix := strings.CutSuffix(p, "*")
		switch {
		case p == eventType && !isPrefix:
			return i
		case isPrefix && len(prefix) > length && strings.HasPrefix(eventType, prefix):
			best, length = i, len(prefix)
		}
	}
	return best
}

// router finds the lanes of an event type: exact pattern first, then the
// longest prefix, then "*". It is built before the relay runs and not changed
// while it does; only the cache is.
type router struct {
	exact    map[string][]Lane
	prefixes []prefixRoute // longest first
	star     []Lane

	mu   sync.RWMutex
	seen map[string][]Lane // answers so far; nil for types without a route
}

type prefixRoute struct {
	prefix string // with the dot: "order."
	lanes  []Lane
}

// maxSeen bounds the cache. Event types are few; where they are not, because
// somebody puts ids into them, finding the route again costs little.
const maxSeen = 4096

func newRouter() *router {
	return &router{exact: make(map[string][]Lane), seen: make(map[string][]Lane)}
}

// add registers a checked pattern, once.
func (r *router) add(pattern string, lanes []Lane) error {
	prefix, isPrefix := strings.CutSuffix(pattern, "*")
	switch {
	case pattern == "*":
		if r.star != nil {
			return fmt.Errorf("%w %q: it has a route already", ErrPattern, pattern)
		}
		r.star = lanes
	case isPrefix:
		for _, p := range r.prefixes {
			if p.prefix == prefix {
				return fmt.Errorf("%w %q: it has a route already", ErrPattern, pattern)
			}
		}
		r.prefixes = append(r.prefixes, prefixRoute{prefix, lanes})
		sort.Slice(r.prefixes, func(i, j int) bool { return len(r.prefixes[i].prefix) > len(r.prefixes[j].prefix) })
	default:
		if r.exact[pattern] != nil {
			return fmt.Errorf("%w %q: it has a route already", ErrPattern, pattern)
		}
		r.exact[pattern] = lanes
	}
	return nil
}

// route returns the lanes of an event type, nil if no pattern matches.
// firstTime is true the first time that a type is met.
func (r *router) route(eventType string) (lanes []Lane, firstTime bool) {
	r.mu.RLock()
	lanes, ok := r.seen[eventType]
	r.mu.RUnlock()
	if ok {
		return lanes, false
	}
	lanes = r.find(eventType)
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.seen[eventType]; !ok && len(r.seen) < maxSeen {
		r.seen[eventType] = lanes
		return lanes, true
	}
	return lanes, false
}

// patterns returns those that lead to a destination.
func (r *router) patterns(name string) []string {
	all := []string{}
	leads := func(lanes []Lane) bool {
		return slices.ContainsFunc(lanes, func(l Lane) bool { return l.l.name == name })
	}
	for pattern, lanes := range r.exact {
		if leads(lanes) {
			all = append(all, pattern)
		}
	}
	for _, p := range r.prefixes {
		if leads(p.lanes) {
			all = append(all, p.prefix+"*")
		}
	}
	if leads(r.star) {
		all = append(all, "*")
	}
	slices.Sort(all)
	return all
}

func (r *router) find(eventType string) []Lane {
	if lanes, ok := r.exact[eventType]; ok {
		return lanes
	}
	for _, p := range r.prefixes {
		if strings.HasPrefix(eventType, p.prefix) {
			return p.lanes
		}
	}
	return r.star
}

// types returns the event types met so far for whose lanes f returns true.
func (r *router) types(f func(lanes []Lane) bool) []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var names []string
	for name, lanes := range r.seen {
		if lanes != nil && f(lanes) {
			names = append(names, name)
		}
	}
	return names
}
