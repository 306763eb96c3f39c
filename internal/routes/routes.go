package routes

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/routing"
)

// Wanted is a destination and its routes in the configuration of a relay.
type Wanted struct {
	// Destination is its name.
	Destination string
	routing.Routes
}

// lists returns both lists as the table stores them: an empty list is not NULL.
func (w *Wanted) lists() (patterns, others []string) {
	return append([]string{}, w.Patterns...), append([]string{}, w.Others...)
}

// Newest returns the last range that the owner of one destination has stored; nil without one.
func Newest(all []Range) *Range {
	if n := len(all); n > 0 && all[n-1].since != expected {
		return &all[n-1]
	}
	return nil
}

// Range is a row of outbox_routes that counts: it is not past.
type Range struct {
	routing.Range

	// Handed reports whether the scanner has stored the events of From that had no route before as deliveries of the
	// destination.
	Handed bool

	since int64 // expected: another relay has these routes, and the owner has not stored them
}

const expected = 0

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

// sqlRoutes reads all ranges, or the ranges of a destination, without past ones.
const sqlRoutes = `SELECT ` + routing.Columns + `, since, handed
FROM outbox_routes WHERE (destination = $1 OR $1 IS NULL) AND past IS NULL ORDER BY destination, since`

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Read returns the ranges by which events are still read or handed, of all destinations or of one, by destination and
// time.
func Read(ctx context.Context, db querier, destination *string) ([]Range, error) {
	rows, err := db.Query(ctx, sqlRoutes, destination)
	if err != nil {
		return nil, fmt.Errorf("read routes: %w", err)
	}

	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Range, err error) {
		err = row.Scan(append(s.Fields(), &s.since, &s.Handed)...)
		return s, err
	})
	if err != nil {
		return nil, fmt.Errorf("read routes: %w", err)
	}

	return all, nil
}
