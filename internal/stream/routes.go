package stream

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// outbox_routes has the routes by which a destination reads which ids. They never change for an id
// that the destination has seen: added routes apply to ids that it has not seen yet, and removed
// routes still apply to ids that it, or the router, has seen. So an event has the routes of the
// moment when it was first read, by its destination or by the router, and whether it has none can
// be decided at any later time.

// Routes are the patterns of event types that lead to a destination, and those that lead only to
// others. The most specific one decides.
type Routes struct {
	Patterns []string
	Others   []string
	// Drops are the settings by which the destination may pass such events without sending them: see
	// dispatch.Dispatcher.Drops.
	Drops []string
}

// way is where the events of a type go.
type way uint8

const (
	nowhere way = iota
	elsewhere
	here
)

func (r *Routes) way(eventType string) way {
	switch best := delivery.BestPattern(append(slices.Clone(r.Patterns), r.Others...), eventType); {
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

func (r *Routes) equal(o *Routes) bool {
	return slices.Equal(r.Patterns, o.Patterns) && slices.Equal(r.Others, o.Others) && slices.Equal(r.Drops, o.Drops)
}

// gains reports whether there may be event types that the destination gets now and did not get by
// the earlier routes. The most specific pattern of both that a type matches decides its routes; a
// type that matches no other pattern is represented by a name.
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

// span is a row of outbox_routes: from its cut on, until another one, the destination reads by
// these routes. If two of its spans contain an id, either counts.
type span struct {
	destination string
	since       int64 // expected: another relay has these routes, the owner has not stored them
	Routes
	from   tail.Watermark
	until  tail.Watermark
	ended  bool
	handed bool
}

const expected = 0

// contains reports whether the destination reads the id by these routes.
func (s *span) contains(id int64) bool { return !s.from.Has(id) && (!s.ended || s.until.Has(id)) }

// waits reports whether the destination begins with these routes, and waits to be handed the events
// that had none before.
func (s *span) waits() bool { return s.since != expected && !s.ended && !s.handed }

func (s *span) equal(o *span) bool {
	return s.destination == o.destination && s.since == o.since && s.handed == o.handed && s.ended == o.ended &&
		s.Routes.equal(&o.Routes) && s.from.Equal(&o.from) && s.until.Equal(&o.until)
}

// sqlRoutes reads all rows, or those of a destination, without what is kept only to show it.
const sqlRoutes = `SELECT destination, since, patterns, others, drops, head, open::text, coalesce(until_head, 0), until_open::text, until_head IS NOT NULL, handed
FROM outbox_routes WHERE (destination = $1 OR $1 IS NULL) AND past IS NULL ORDER BY destination, since`

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func readRoutes(ctx context.Context, db querier, destination *string) ([]span, error) {
	rows, err := db.Query(ctx, sqlRoutes, destination)
	if err != nil {
		return nil, fmt.Errorf("read routes: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s span, err error) {
		var from, until string
		err = row.Scan(&s.destination, &s.since, &s.Patterns, &s.Others, &s.Drops, &s.from.Head, &from, &s.until.Head, &until, &s.ended, &s.handed)
		if err != nil {
			return s, err
		}
		if s.from.Open, err = tail.ParseRanges(from); err != nil {
			return s, err
		}
		s.until.Open, err = tail.ParseRanges(until)
		return s, err
	})
	if err != nil {
		return nil, fmt.Errorf("read routes: %w", err)
	}
	return all, nil
}

// announce makes all relays of the table check their units, routes and stored deliveries.
func (e *Engine) announce(ctx context.Context, conn *session.Conn) error {
	if _, err := conn.Exec(ctx, `SELECT pg_notify($1, 'deliveries') WHERE `+outboxsql.MayNotify, outboxsql.Channel(e.Connector.Schema)); err != nil {
		return fmt.Errorf("announce to other relays: %w", err)
	}
	e.poke(true)
	return nil
}

// routes tells the router which destinations get which events.
type routes struct {
	all     []span
	readers []reader           // by destination
	byType  map[string]verdict // answers so far
}

// reader is a destination, with the indices of its spans in all.
type reader struct {
	spans  []int // that it has stored, in order
	newest int   // -1: none is stored
	coming int   // the expected span; -1: none
}

// verdict is the verdict of the spans on an event type: one way for each.
type verdict []way

func newRoutes(all []span) routes {
	s := routes{all: all, byType: make(map[string]verdict)}
	for i := range all {
		if i == 0 || all[i].destination != all[i-1].destination {
			s.readers = append(s.readers, reader{newest: -1, coming: -1})
		}
		r := &s.readers[len(s.readers)-1]
		if all[i].since == expected {
			r.coming = i
			continue
		}
		r.spans, r.newest = append(r.spans, i), i
	}
	return s
}

func (s *routes) of(eventType string) verdict {
	if v, ok := s.byType[eventType]; ok {
		return v
	}
	v := make(verdict, len(s.all))
	for i := range s.all {
		v[i] = s.all[i].way(eventType)
	}
	if len(s.byType) < maxSkip {
		s.byType[eventType] = v
	}
	return v
}

// gets reports whether the reader gets such events now.
func (v verdict) gets(r *reader) bool { return r.newest >= 0 && v[r.newest] == here }

// awaits reports whether the reader will get such events, but does not yet.
func (v verdict) awaits(r *reader) bool { return r.coming >= 0 && v[r.coming] == here && !v.gets(r) }

// gotten reports whether any reader gets such events now.
func (s *routes) gotten(v verdict) bool {
	return slices.ContainsFunc(s.readers, func(r reader) bool { return v.gets(&r) })
}

// awaited reports whether any reader will get such events, but does not yet.
func (s *routes) awaited(v verdict) bool {
	return slices.ContainsFunc(s.readers, func(r reader) bool { return v.awaits(&r) })
}

// reads reports whether the reader finds the event by itself.
func (s *routes) reads(v verdict, r *reader, id int64) bool {
	return slices.ContainsFunc(r.spans, func(i int) bool { return v[i] == here && s.all[i].contains(id) })
}

// read reports whether any reader finds the event by itself.
func (s *routes) read(v verdict, id int64) bool {
	return slices.ContainsFunc(s.readers, func(r reader) bool { return s.reads(v, &r, id) })
}

// owed reports whether the reader, which gets such events or will, passed this one when it was for
// no destination: no reader reads it, or those that do have gained their route later.
func (s *routes) owed(v verdict, r *reader, id int64, read bool) bool {
	latest := r.newest
	if v.awaits(r) {
		latest = r.coming
	}
	if latest < 0 || v[latest] != here || !s.all[latest].from.Has(id) || s.reads(v, r, id) {
		return false
	}
	if !read {
		return true
	}
	passed := false
	for _, i := range r.spans {
		if s.all[i].contains(id) {
			if v[i] != nowhere {
				return false
			}
			passed = true
		}
	}
	return passed
}

// unrouted reports whether the event must be kept for readers that do not find it by themselves.
func (s *routes) unrouted(v verdict, id int64) bool {
	read := s.read(v, id)
	return !read || slices.ContainsFunc(s.readers, func(r reader) bool { return s.owed(v, &r, id, read) })
}

// due reports whether the event must be handed to any reader that gets such events now.
func (s *routes) due(v verdict, id int64) bool {
	read := s.read(v, id)
	return slices.ContainsFunc(s.readers, func(r reader) bool { return v.gets(&r) && s.owed(v, &r, id, read) })
}

// settled reports whether no event of the type above the id is unrouted: a reader reads them, and
// none of them is owed to any reader.
func (s *routes) settled(v verdict, id int64) bool {
	some := false
	for i := range s.readers {
		r := &s.readers[i]
		if v.awaits(r) && s.all[r.coming].from.Head > id || v.gets(r) && s.all[r.newest].from.Head > id {
			return false
		}
		some = some || v.gets(r)
	}
	return some
}
