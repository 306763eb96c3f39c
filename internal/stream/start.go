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

// create creates the positions of some of the wanted destinations. Relays that start at the same time take turns.
func create(ctx context.Context, conn *session.Conn, all []routes.Wanted, missing []Wanted, log *slog.Logger) error {
	var created []newPosition
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) (err error) {
		created, err = createPositions(ctx, tx, all, missing)
		return err
	})
	if err != nil {
		return fmt.Errorf("create positions: %w", err)
	}
	for _, m := range created {
		log.InfoContext(ctx, "destination begins", "destination", shardName(m.destination), "from", cmp.Or(m.from, engine.Start{Kind: engine.StartAtBeginning}).String(), "head", m.head)
	}
	return nil
}

// sqlCreating serializes the relays that create positions.
const sqlCreating = `SELECT pg_advisory_xact_lock('outbox_positions'::regclass::oid::bigint::bit(32)::int, 0)`

// newPosition is a new position, as the log shows it.
type newPosition struct {
	destination string
	from        engine.Start
	head        int64
}

func createPositions(ctx context.Context, tx pgx.Tx, all []routes.Wanted, missing []Wanted) (created []newPosition, err error) {
	if _, err := tx.Exec(ctx, sqlCreating); err != nil {
		return nil, fmt.Errorf("serialize with other relays: %w", err)
	}
	var origin, last int64
	var open, old, now string
	var first bool
	err = tx.QueryRow(ctx, `SELECT origin_head, origin_open::text, coalesce(origin_sequence, now), now, outbox_last_id(),
		NOT EXISTS (SELECT FROM outbox_positions WHERE destination <> '') FROM outbox_mode, (SELECT `+outboxsql.SQLSequence+` AS now) AS s`).Scan(&origin, &open, &old, &now, &last, &first)
	if err != nil {
		return nil, fmt.Errorf("read where destinations start: %w", err)
	}
	for _, w := range missing {
		p := newPosition{destination: w.Destination, from: startOf(&w, first), head: last}
		opening, sequence := "{}", now
		switch p.from.Kind {
		case engine.StartDefault: // the undelivered events of a former queue, or everything
			p.head, opening, sequence = origin, open, old
		case engine.StartAtBeginning: // also the events of a former queue: a new destination has received none
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
		created = append(created, p)
		if p.destination == "" {
			continue
		}
		// Immediately: until the routes are stored, the unrouted scanner treats the destination's events as unrouted.
		at := tail.Watermark{Head: p.head}
		if at.Open, err = tail.ParseRanges(opening); err == nil {
			err = routes.Begin(ctx, tx, all, w.Wanted, at)
		}
		if err != nil {
			return nil, fmt.Errorf("store the routes of %q: %w", p.destination, err)
		}
	}
	return created, nil
}

// startOf returns where a destination without a position begins. [engine.StartDefault] is the beginning of the stream.
func startOf(w *Wanted, first bool) engine.Start {
	switch {
	case w.Start.Kind == engine.StartDefault && !first && w.Destination != "": // the unrouted scanner must read everything
		return engine.Start{Kind: engine.StartNow}
	default:
		return w.Start
	}
}
