package stream

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/dispatch"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// outbox_routes says since when a destination reads the types that match a pattern: it
// has passed over everything up to there that was not open. What had no route when all
// of those passed over it who would get it now, the router hands to them. A destination
// that has got a new pattern reads nothing until that is done, or what is written now
// would go before what was written then.

// route is a row of outbox_routes.
type route struct {
	destination string
	pattern     string
	head        int64
	open        Ranges
	handed      bool
}

// expected says that the destination has not noted the pattern yet: a relay that gets
// the same types with another of its destinations has seen that it will.
func (r *route) expected() bool { return r.head == math.MinInt64 }

// passed reports whether the destination did not look for the pattern when it passed
// over the event.
func (r *route) passed(id int64) bool { return id <= r.head && !r.open.Contains(id) }

// equal reports whether two rows say the same.
func (r route) equal(o route) bool {
	return r.destination == o.destination && r.pattern == o.pattern && r.head == o.head && r.handed == o.handed && slices.Equal(r.open, o.open)
}

// readRoutes reads all rows.
func readRoutes(ctx context.Context, conn *pgx.Conn) ([]route, error) {
	rows, err := conn.Query(ctx, `SELECT destination, pattern, head, open::text, handed FROM outbox_routes ORDER BY destination, pattern`)
	if err != nil {
		return nil, fmt.Errorf("read routes: %w", err)
	}
	var r route
	var open string
	var all []route
	_, err = pgx.ForEachRow(rows, []any{&r.destination, &r.pattern, &r.head, &open, &r.handed}, func() (err error) {
		if r.open, err = ParseRanges(open); err != nil {
			return err
		}
		all = append(all, r)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read routes: %w", err)
	}
	return all, nil
}

// handPoll is how often a destination looks whether it has been handed what had no route.
const handPoll = 50 * time.Millisecond

// sqlRoute notes the patterns of a destination as they are now, and says how many of
// them are new to it.
const sqlRoute = `WITH gone AS (DELETE FROM outbox_routes WHERE destination = $1 AND pattern <> ALL($2::text[]))
INSERT INTO outbox_routes (destination, pattern, head, open)
SELECT $1, p, $3, $4::text::int8multirange FROM unnest($2::text[]) AS p
ON CONFLICT (destination, pattern) DO UPDATE SET head = excluded.head, open = excluded.open WHERE outbox_routes.head = -9223372036854775808`

// sqlExpect notes patterns of destinations that have yet to note them: what had no route is
// handed to all who get it, or to nobody yet, so that none comes too late for it.
const sqlExpect = `INSERT INTO outbox_routes (destination, pattern, head)
SELECT e.destination, e.pattern, -9223372036854775808 FROM unnest($1::text[], $2::text[]) AS e(destination, pattern) ON CONFLICT DO NOTHING`

// expectations returns all pairs of destinations and patterns, sorted, so that those who
// note them at the same time do not lock each other out.
func expectations(all []Wanted) (destinations, patterns []string) {
	all = slices.SortedFunc(slices.Values(all), func(a, b Wanted) int { return strings.Compare(a.Destination, b.Destination) })
	for _, w := range all {
		for _, p := range w.Patterns {
			destinations, patterns = append(destinations, w.Destination), append(patterns, p)
		}
	}
	return destinations, patterns
}

// handed reports whether the destination has been handed all that had no route before
// it had one. It notes the routes of the destination when it is first called.
func (u *unit) handed(ctx context.Context, conn *pgx.Conn) (bool, error) {
	if !u.routed {
		// What is open for this unit it will read itself, with the routes of now.
		head, open := u.account(true)
		head, open = bound(head, open)
		var tag pgconn.CommandTag
		err := u.owned(ctx, conn, func(tx pgx.Tx) (err error) {
			names, patterns := expectations(u.e.wanted)
			if _, err := tx.Exec(ctx, sqlExpect, names, patterns); err != nil {
				return err
			}
			tag, err = tx.Exec(ctx, sqlRoute, u.name, u.e.d.Patterns(u.name), head, open.String())
			return err
		})
		if err != nil {
			return false, fmt.Errorf("note the routes of %q: %w", u.name, err)
		}
		u.routed = true
		if tag.RowsAffected() > 0 {
			if err := u.e.announce(ctx, conn); err != nil {
				return false, err
			}
		}
	}
	var waiting int
	err := conn.QueryRow(ctx, `SELECT count(*) FROM outbox_routes WHERE destination = $1 AND NOT handed`, u.name).Scan(&waiting)
	if err != nil {
		return false, fmt.Errorf("look for what had no route: %w", err)
	}
	return waiting == 0, nil
}

// announce has all relays of the table look at their units, routes and stored deliveries.
func (e *Engine) announce(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, `SELECT pg_notify($1, 'deliveries')`, outboxsql.Channel(e.Connector.Schema)); err != nil {
		return fmt.Errorf("announce to other relays: %w", err)
	}
	e.poke(true)
	return nil
}

// routes tells the router who gets what.
type routes struct {
	all    []route
	byType map[string]verdictOf // answers so far
}

// verdictOf is what routes say of an event type.
type verdictOf struct {
	matching []int // all whose pattern matches
	best     []int // those who get it
	expected bool  // one of them has yet to note that
	read     int64 // everything above is read by one of them
}

func (s *routes) of(eventType string) verdictOf {
	if v, ok := s.byType[eventType]; ok {
		return v
	}
	patterns := make([]string, len(s.all))
	v := verdictOf{read: math.MaxInt64}
	for i := range s.all {
		patterns[i] = s.all[i].pattern
		if !s.all[i].expected() && dispatch.BestPattern(patterns[i:i+1], eventType) == 0 {
			v.matching = append(v.matching, i)
			v.read = min(v.read, s.all[i].head)
		}
	}
	if best := dispatch.BestPattern(patterns, eventType); best >= 0 {
		for i := range s.all {
			if s.all[i].pattern == patterns[best] {
				v.best = append(v.best, i)
				v.expected = v.expected || s.all[i].expected()
			}
		}
	}
	if s.byType == nil {
		s.byType = make(map[string]verdictOf)
	}
	if len(s.byType) < maxSkip {
		s.byType[eventType] = v
	}
	return v
}

// awaits reports whether one of those who have the pattern has yet to note it.
func (s *routes) awaits(pattern string) bool {
	return slices.ContainsFunc(s.all, func(r route) bool { return r.pattern == pattern && r.expected() })
}

// unrouted reports whether nobody reads the event by himself: whoever gets its type
// now had passed over it before.
func (s *routes) unrouted(eventType string, id int64) bool {
	for _, i := range s.of(eventType).matching {
		if !s.all[i].passed(id) {
			return false
		}
	}
	return true
}
