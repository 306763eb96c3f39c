package routing

import (
	"slices"
	"strings"

	"github.com/notifyd/notifyd/internal/idset"
)

// Routes are the patterns of event types that lead to a destination, and the patterns that lead only to others. The
// most specific one decides.
type Routes struct {
	Patterns []string
	Others   []string
	// Drops are the settings by which the destination may pass such events without sending them: see
	// dispatch.Dispatcher.Drops.
	Drops []string
}

// Way is where the events of a type go.
type Way uint8

// The ways.
const (
	Nowhere   Way = iota // no pattern matches
	Elsewhere            // to another destination
	Here                 // to the destination of the routes
)

// Way returns where the events of a type go.
func (r *Routes) Way(eventType string) Way {
	switch best := Best(slices.Concat(r.Patterns, r.Others), eventType); {
	case best < 0:
		return Nowhere
	case best < len(r.Patterns):
		return Here
	}
	return Elsewhere
}

// Gets reports whether events of the type go to the destination.
func (r *Routes) Gets(eventType string) bool { return r.Way(eventType) == Here }

// Equal reports whether both are the same.
func (r *Routes) Equal(o *Routes) bool {
	return slices.Equal(r.Patterns, o.Patterns) && slices.Equal(r.Others, o.Others) && slices.Equal(r.Drops, o.Drops)
}

// Gains reports whether there may be event types that the destination gets now and did not get by the earlier routes.
// For each type, the most specific matching pattern decides. A type that matches no longer pattern is represented by a
// name.
func (r *Routes) Gains(before *Routes) bool {
	const unheard = "\x00"
	for _, p := range slices.Concat(r.Patterns, r.Others, before.Patterns, before.Others) {
		name := p
		if prefix, is := strings.CutSuffix(p, "*"); is {
			name = prefix + unheard
		}
		if r.Gets(name) && !before.Gets(name) {
			return true
		}
	}

	return false
}

// Range is a row of outbox_routes: the destination reads the ids between two watermarks by these routes. If two of its
// ranges contain an id, both apply.
type Range struct {
	// Destination is the name of the destination.
	Destination string
	Routes
	// From has the ids that the destination had read before: these routes apply to all other ids.
	From idset.Watermark
	// Until has the ids that the destination or the unrouted scanner had read when the routes ended.
	Until idset.Watermark
	// Ended reports whether the routes have ended.
	Ended bool
}

// Contains reports whether the destination reads the id by these routes.
func (r *Range) Contains(id int64) bool { return !r.From.Has(id) && (!r.Ended || r.Until.Has(id)) }

// Reads reports whether the destination reads an event by these routes.
func (r *Range) Reads(eventType string, id int64) bool { return r.Contains(id) && r.Gets(eventType) }

// Columns are the columns of outbox_routes that [Range.Fields] receives.
const Columns = `destination, patterns, others, drops, head, open::text, until_head IS NOT NULL, coalesce(until_head, 0),
	until_open::text`

// Fields returns where to scan [Columns].
func (r *Range) Fields() []any {
	return []any{
		&r.Destination, &r.Patterns, &r.Others, &r.Drops,
		&r.From.Head, &r.From.Open, &r.Ended, &r.Until.Head, &r.Until.Open,
	}
}
