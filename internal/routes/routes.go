package routes

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/routing"
	"github.com/notifyd/notifyd/internal/tail"
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

// way is where the events of a type go: nowhere, to another destination, or here.
type way uint8

const (
	nowhere way = iota
	elsewhere
	here
)

func (r *Routes) way(eventType string) way {
	switch best := routing.Best(append(slices.Clone(r.Patterns), r.Others...), eventType); {
	case best < 0:
		return nowhere
	case best < len(r.Patterns):
		return here
	}
	return elsewhere
}

// lists returns both lists as the table stores them: an empty list is not NULL.
func (r *Routes) lists() (patterns, others []string) {
	return append([]string{}, r.Patterns...), append([]string{}, r.Others...)
}

// Equal reports whether both are the same.
func (r *Routes) Equal(o *Routes) bool {
	return slices.Equal(r.Patterns, o.Patterns) && slices.Equal(r.Others, o.Others) && slices.Equal(r.Drops, o.Drops)
}

// gains reports whether there may be event types that the destination gets now and did not get by the earlier routes.
// For each type, the most specific matching pattern decides. A type that matches no longer pattern is represented by a
// name.
func (r *Routes) gains(before *Routes) bool {
	const unheard = "\x00"
	for _, p := range slices.Concat(r.Patterns, r.Others, before.Patterns, before.Others) {
		name := p
		if prefix, is := strings.CutSuffix(p, "*"); is {
			name = prefix + unheard
		}
		if r.way(name) == here && before.way(name) != here {
			return true
		}
	}

	return false
}

// Wanted is a destination and its routes in the configuration of a relay.
type Wanted struct {
	// Destination is its name.
	Destination string
	Routes
}

// Newest returns the last span that the owner of one destination has stored; nil without one.
func Newest(all []Range) *Range {
	if n := len(all); n > 0 && all[n-1].since != expected {
		return &all[n-1]
	}
	return nil
}

// Range is a row of outbox_routes: the destination reads the ids between two watermarks by these routes. If two of its
// spans contain an id, both apply.
type Range struct {
	// Destination is the name of the destination.
	Destination string
	Routes
	// From has the ids that the destination had read before: these routes apply to all other ids.
	From tail.Watermark
	// Until has the ids that the destination or the unrouted scanner had read when the routes ended.
	Until tail.Watermark
	// Ended reports whether the routes have ended.
	Ended bool
	// Handed reports whether the scanner has stored the events of From that had no route before as deliveries of the
	// destination.
	Handed bool

	since int64 // expected: another relay has these routes, and the owner has not stored them
}

const expected = 0

// Reads reports whether the destination reads an event by these routes.
func (s *Range) Reads(eventType string, id int64) bool { return s.contains(id) && s.Gets(eventType) }

// Gets reports whether events of the type go to the destination.
func (r *Routes) Gets(eventType string) bool { return r.way(eventType) == here }

// contains reports whether the destination reads the id by these routes.
func (s *Range) contains(id int64) bool { return !s.From.Has(id) && (!s.Ended || s.Until.Has(id)) }

// waits reports whether the destination begins with these routes, and waits for events that had no route before.
func (s *Range) waits() bool { return s.since != expected && !s.Ended && !s.Handed }

func (s *Range) equal(o *Range) bool {
	if s.Destination != o.Destination || s.since != o.since {
		return false
	}
	if s.Handed != o.Handed || s.Ended != o.Ended {
		return false
	}

	return s.Equal(&o.Routes) && s.From.Equal(&o.From) && s.Until.Equal(&o.Until)
}

// sqlRoutes reads all spans, or the spans of a destination, without past ones.
const sqlRoutes = `SELECT destination, since, patterns, others, drops, head, open::text, coalesce(until_head, 0),
	until_open::text, until_head IS NOT NULL, handed
FROM outbox_routes WHERE (destination = $1 OR $1 IS NULL) AND past IS NULL ORDER BY destination, since`

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Read returns the spans by which events are still read or handed, of all destinations or of one, by destination and
// time.
func Read(ctx context.Context, db querier, destination *string) ([]Range, error) {
	rows, err := db.Query(ctx, sqlRoutes, destination)
	if err != nil {
		return nil, fmt.Errorf("read routes: %w", err)
	}

	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Range, err error) {
		var from, until string

		err = row.Scan(&s.Destination, &s.since, &s.Patterns, &s.Others, &s.Drops,
			&s.From.Head, &from, &s.Until.Head, &until, &s.Ended, &s.Handed)
		if err != nil {
			return s, err
		}

		s.From.Open, err = tail.ParseRanges(from)
		if err != nil {
			return s, err
		}

		s.Until.Open, err = tail.ParseRanges(until)
		return s, err
	})
	if err != nil {
		return nil, fmt.Errorf("read routes: %w", err)
	}

	return all, nil
}
