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
	exact    map[string][]Lane
	prefixes []prefixRoute // longest first
	star     []Lane

	mu   sync.RWMutex
	seen map[string][]Lane // cached answers; nil for types without a route
}

type prefixRoute struct {
	prefix string // including the dot: "order."
	lanes  []Lane
}

// maxSeen bounds the cache. Event types are few; where they are not, because a writer puts ids into
// them, finding the route again costs little.
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
			return fmt.Errorf("%w %q: the pattern has a route already", delivery.ErrPattern, pattern)
		}
		r.star = lanes
	case isPrefix:
		for _, p := range r.prefixes {
			if p.prefix == prefix {
				return fmt.Errorf("%w %q: the pattern has a route already", delivery.ErrPattern, pattern)
			}
		}
		r.prefixes = append(r.prefixes, prefixRoute{prefix, lanes})
		sort.Slice(r.prefixes, func(i, j int) bool { return len(r.prefixes[i].prefix) > len(r.prefixes[j].prefix) })
	default:
		if r.exact[pattern] != nil {
			return fmt.Errorf("%w %q: the pattern has a route already", delivery.ErrPattern, pattern)
		}
		r.exact[pattern] = lanes
	}
	return nil
}

// route returns the lanes of an event type, nil if no pattern matches. firstTime is true the first
// time that a type is seen.
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

// patterns returns the patterns that lead to a destination.
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

// types returns the event types seen so far for whose lanes f returns true.
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
