package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// ErrNoPosition is wrapped by the error about a destination without a position.
var ErrNoPosition = errors.New("no such position")

// ErrDelivered is wrapped by the error about a position that cannot be forgotten, because a relay
// delivers to its destination.
var ErrDelivered = errors.New("a relay delivers to it: remove the destination from the configuration first, and reload")

// ErrQueue is wrapped by errors about a table that is a queue.
var ErrQueue = errors.New("only a stream has positions, and outbox_events is a queue")

// Positions returns all positions, by destination and shard. The position without a destination belongs to the
// unrouted scanner. Oldest is not set.
func (s *Client) Positions(ctx context.Context) (all []observe.Position, err error) {
	err = s.ofStream(ctx, "list positions", pgx.ReadOnly, func(tx pgx.Tx) error {
		all, err = store.ListPositions(ctx, tx, s.cfg.Schema)
		return err
	})
	return all, err
}

// RouteSpan is a range of ids in which a destination reads certain event
// types.
type RouteSpan struct {
	// From and Until bound the ids that the destination reads by these patterns: above From, up to
	// Until. Until is nil while the route exists.
	From  int64  `json:"from"`
	Until *int64 `json:"until,omitempty"`
	// Patterns are as in the configuration: a name, a prefix with an asterisk, or an asterisk.
	Patterns []string `json:"patterns"`
	// Skipped is true if a person has moved the position past these ids; then Patterns is
	// empty.
	Skipped bool `json:"skipped,omitempty"`
}

// PositionDetails are everything about the position of a destination.
type PositionDetails struct {
	// Parts are the destination's positions; there is one unless it is read in parts.
	Parts []observe.Position `json:"parts"`
	// CreatedAt is when the destination was first seen.
	CreatedAt time.Time `json:"created_at"`
	// First is the id of the first stored event, 0 without events, and Last the highest assigned id.
	First int64 `json:"first_kept"`
	Last  int64 `json:"last_assigned"`
	// Routes are in the order in which they were begun.
	Routes []RouteSpan `json:"routes"`
}

// Position returns everything about the position of a destination. The error wraps [ErrNoPosition] if the destination
// has no position.
func (s *Client) Position(ctx context.Context, destination string) (d PositionDetails, err error) {
	err = s.ofStream(ctx, "show a position", pgx.ReadOnly, func(tx pgx.Tx) error {
		all, err := store.ListPositions(ctx, tx, s.cfg.Schema)
		if err != nil {
			return err
		}

		d.Parts = slices.DeleteFunc(slices.Clone(all), func(p observe.Position) bool { return p.Destination != destination })
		if len(d.Parts) == 0 {
			return missing(destination, all)
		}

		err = tx.QueryRow(ctx, `SELECT min(created_at), coalesce((SELECT id FROM outbox_events ORDER BY id LIMIT 1), 0), outbox_last_id()
			FROM outbox_positions WHERE destination = $1`, destination).Scan(&d.CreatedAt, &d.First, &d.Last)
		if err != nil {
			return err
		}

		rows, err := tx.Query(ctx, `SELECT head, until_head, patterns, past IS NOT DISTINCT FROM 'skipped'
			FROM outbox_routes WHERE destination = $1 AND since > 0 ORDER BY since`, destination)
		if err != nil {
			return err
		}

		d.Routes, err = pgx.CollectRows(rows, pgx.RowToStructByPos[RouteSpan])
		return err
	})
	return d, err
}

// missing is the error about a destination without a position.
func missing(destination string, all []observe.Position) error {
	names := make([]string, 0, len(all))
	for i := range all {
		if all[i].Destination != "" {
			names = append(names, all[i].Destination)
		}
	}

	if len(names) == 0 {
		return fmt.Errorf("%q: %w: no destination has one yet", destination, ErrNoPosition)
	}

	return fmt.Errorf("%q: %w: there are those of %s", destination, ErrNoPosition, strings.Join(slices.Compact(names), ", "))
}

// ofStream runs f in a transaction in which the table stays a stream, and names lead to the schema.
func (s *Client) ofStream(ctx context.Context, what string, access pgx.TxAccessMode, f func(tx pgx.Tx) error) error {
	return s.tx(ctx, what, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: access}, func(tx pgx.Tx, _ time.Time) error {
		if _, err := tx.Exec(ctx, `SELECT set_config('search_path', $1, true)`, pgx.Identifier{s.cfg.Schema}.Sanitize()); err != nil {
			return err
		}

		mode := s.mode
		if access == pgx.ReadWrite {
			mode = s.holdMode
		}

		switch is, err := mode(ctx, tx); {
		case err != nil:
			return err
		case is != outboxsql.ModeStream:
			return ErrQueue
		}

		return f(tx)
	})
}
