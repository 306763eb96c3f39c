package stream

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/store"
)

// createWithin bounds the creation of positions: some are found by time, and where many events were
// deleted the search for the first takes a while.
const createWithin = 15 * time.Second

// create creates the missing positions. Relays that start at the same time do it one after the
// other.
func (s *dbSession) create(ctx context.Context, missing []Wanted) error {
	var made []madePosition
	err := within(ctx, createWithin, func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) (err error) {
			made, err = createPositions(ctx, tx, s.class, s.options.Destinations, missing)
			return err
		})
	})
	if err != nil {
		return err
	}
	for _, m := range made {
		s.log.InfoContext(ctx, "destination begins", "destination", unitName(m.destination), "from", m.from.String(), "head", m.head)
	}
	return nil
}

// madePosition is a new position, as a log shows it.
type madePosition struct {
	destination string
	from        engine.Start
	head        int64
}

func createPositions(ctx context.Context, tx pgx.Tx, class int32, all, missing []Wanted) (made []madePosition, err error) {
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1, $2)`, class, creating); err != nil {
		return nil, fmt.Errorf("make positions: %w", err)
	}
	var origin, last int64
	var open string
	var first bool
	err = tx.QueryRow(ctx, `SELECT origin_head, origin_open::text, outbox_last_id(),
		NOT EXISTS (SELECT FROM outbox_positions WHERE destination <> '') FROM outbox_mode`).Scan(&origin, &open, &last, &first)
	if err != nil {
		return nil, fmt.Errorf("make positions: %w", err)
	}
	for _, w := range missing {
		p := madePosition{destination: w.Destination, from: startOf(&w, first), head: last}
		opening := "{}"
		switch p.from.Kind {
		case engine.StartAtBeginning:
			p.head, opening = origin, open
		case engine.StartAtID:
			p.head = p.from.ID - 1
		case engine.StartAtTime:
			if p.head, err = store.FirstSince(ctx, tx, p.from.Time); err != nil {
				return nil, err
			}
			p.head--
		default: // now
		}
		tag, err := tx.Exec(ctx, `INSERT INTO outbox_positions (destination, head, open) VALUES ($1, $2, $3::text::int8multirange)
			ON CONFLICT DO NOTHING`, p.destination, p.head, opening)
		if err != nil {
			return nil, fmt.Errorf("create the position of %q: %w", p.destination, err)
		}
		if tag.RowsAffected() == 0 {
			continue
		}
		made = append(made, p)
		if p.destination == "" {
			continue
		}
		// At once: otherwise the router would treat events that no destination reads yet as
		// unrouted.
		at := cut{head: p.head}
		if at.open, err = ParseRanges(opening); err == nil {
			err = firstRoutes(ctx, tx, all, &w, at)
		}
		if err != nil {
			return nil, fmt.Errorf("store the routes of %q: %w", p.destination, err)
		}
	}
	return made, nil
}

// startOf returns where a destination begins that has no position.
func startOf(w *Wanted, first bool) engine.Start {
	switch {
	case w.Start.Kind != engine.StartDefault:
		return w.Start
	case first || w.Destination == "": // the router has to read everything
		return engine.Start{Kind: engine.StartAtBeginning}
	default:
		return engine.Start{Kind: engine.StartNow}
	}
}
