package stream

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/routes"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/tail"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// create creates the positions of some of the wanted destinations. Relays that start at the same time do it one after the
// other.
func create(ctx context.Context, conn *session.Conn, all []routes.Wanted, missing []Wanted, log *slog.Logger) error {
	var made []madePosition
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) (err error) {
		made, err = createPositions(ctx, tx, all, missing)
		return err
	})
	if err != nil {
		return fmt.Errorf("create positions: %w", err)
	}
	for _, m := range made {
		log.InfoContext(ctx, "destination begins", "destination", unitName(m.destination), "from", cmp.Or(m.from, engine.Start{Kind: engine.StartAtBeginning}).String(), "head", m.head)
	}
	return nil
}

// sqlCreating lets relays create positions one after the other.
const sqlCreating = `SELECT pg_advisory_xact_lock('outbox_positions'::regclass::oid::bigint::bit(32)::int, 0)`

// madePosition is a new position, as a log shows it.
type madePosition struct {
	destination string
	from        engine.Start
	head        int64
}

func createPositions(ctx context.Context, tx pgx.Tx, all []routes.Wanted, missing []Wanted) (made []madePosition, err error) {
	if _, err := tx.Exec(ctx, sqlCreating); err != nil {
		return nil, fmt.Errorf("make positions: %w", err)
	}
	var origin, last int64
	var open, old, now string
	var first bool
	err = tx.QueryRow(ctx, `SELECT origin_head, origin_open::text, coalesce(origin_sequence, now), now, outbox_last_id(),
		NOT EXISTS (SELECT FROM outbox_positions WHERE destination <> '') FROM outbox_mode, (SELECT `+outboxsql.SQLSequence+` AS now) AS s`).Scan(&origin, &open, &old, &now, &last, &first)
	if err != nil {
		return nil, fmt.Errorf("make positions: %w", err)
	}
	for _, w := range missing {
		p := madePosition{destination: w.Destination, from: startOf(&w, first), head: last}
		opening, sequence := "{}", now
		switch p.from.Kind {
		case engine.StartDefault: // what a former queue has not delivered, or everything
			p.head, opening, sequence = origin, open, old
		case engine.StartAtBeginning: // a former queue's events, too: a new destination has none of them
			p.head = 0
		case engine.StartAtID:
			p.head = p.from.ID - 1
		case engine.StartAtTime:
			if p.head, err = store.FirstSince(ctx, tx, p.from.Time); err != nil {
				return nil, err
			}
			p.head--
		default: // now
		}
		tag, err := tx.Exec(ctx, `INSERT INTO outbox_positions (destination, head, open, sequence, seen, seen_at)
			VALUES ($1, $2, $3::text::int8multirange, $4, pg_snapshot_xmax(pg_current_snapshot()), clock_timestamp()) ON CONFLICT DO NOTHING`, p.destination, p.head, opening, sequence)
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
		at := tail.Watermark{Head: p.head}
		if at.Open, err = tail.ParseRanges(opening); err == nil {
			err = routes.Begin(ctx, tx, all, w.Wanted, at)
		}
		if err != nil {
			return nil, fmt.Errorf("store the routes of %q: %w", p.destination, err)
		}
	}
	return made, nil
}

// startOf returns where a destination begins that has no position. [engine.StartDefault] is the beginning of the stream.
func startOf(w *Wanted, first bool) engine.Start {
	switch {
	case w.Start.Kind == engine.StartDefault && !first && w.Destination != "": // the router has to read everything
		return engine.Start{Kind: engine.StartNow}
	default:
		return w.Start
	}
}
