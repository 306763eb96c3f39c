package stream

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/tail"
)

// PositionRow is the position of one unit, as any role with the privilege reads it.
type PositionRow struct {
	// Destination is empty for the router.
	Destination string
	Part        int
	Unit        int32
	Epoch       int64
	// Owner is the number of the relay that owns the unit, nil after a handover.
	Owner *int64
	// All ids up to Head are acknowledged, or in Open.
	Head int64
	Open tail.Ranges
	// Delivered is how many deliveries the destination has acknowledged so far.
	Delivered int64
	// Lag is how many ids the destination still has to handle: those above Head and those in Open.
	// Some of them have no event, and some events are not for it.
	Lag int64
	// UpdatedAt is when the position last changed.
	UpdatedAt time.Time
}

// Positions returns all positions, by destination and part, the router first.
func Positions(ctx context.Context, db querier) ([]PositionRow, error) {
	rows, err := db.Query(ctx, `SELECT p.destination, p.part, p.unit, p.epoch, p.owner, p.head, p.open::text, p.delivered,
		greatest(l.last - p.head, 0), p.updated_at
		FROM outbox_positions AS p, (SELECT outbox_last_id() AS last) AS l ORDER BY p.destination COLLATE "C", p.part`)
	if err != nil {
		return nil, fmt.Errorf("read the positions: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (p PositionRow, err error) {
		var open string
		if err := r.Scan(&p.Destination, &p.Part, &p.Unit, &p.Epoch, &p.Owner, &p.Head, &open, &p.Delivered, &p.Lag, &p.UpdatedAt); err != nil {
			return p, err
		}
		p.Open, err = tail.ParseRanges(open)
		p.Lag += p.Open.IDs()
		return p, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the positions: %w", err)
	}
	return all, nil
}
