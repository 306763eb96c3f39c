package stream

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lease"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
)

// Position is the row of one unit, as it was when this relay loaded it.
type Position struct {
	lease.Lease

	// All ids up to Head are acknowledged, or in Open.
	Head int64
	Open tail.Ranges
	// Delivered is how many deliveries the destination has acknowledged so far.
	Delivered int64

	seen anchor
	// sequence is what assigned the ids at the last check, as outbox_positions has it.
	sequence string
	exact    bool   // the destination has a copy: all ranges are written, as the two are compared
	row      string // the ctid of the row as this relay has written it last; empty: not known
}

// maxOpen bounds the ranges that are written with a position.
const maxOpen = 4096

const (
	setSave = `UPDATE outbox_positions SET head = $3::bigint, open = $4::text::int8multirange,
	delivered = delivered + $5::bigint, updated_at = clock_timestamp(), ` + sqlSeen + ` WHERE unit = $1::int AND epoch = $2::bigint`

	// sqlSave writes the position of a unit. It changes one row, or none if another relay owns the unit, or the position was moved
	// by hand. It finds the row by its place: under an old snapshot the versions of all writes since stay, and a
	// search by the key would read them.
	sqlSave = setSave + ` AND ctid = $6::text::tid RETURNING ctid::text`
	// sqlSaveByKey does so where others have written the row.
	sqlSaveByKey = setSave + ` RETURNING ctid::text`
)

// pruneEvery is of how many saves one finds the row by its key.
const pruneEvery = 16

// Save writes the position: head, the open ids up to it, and how many events were acknowledged since the last write. If there
// are more than 4,096 ranges, the written head lies below the surplus, so that a crash repeats a longer suffix of each
// aggregate's deliveries. It returns false if the unit does not belong to this owner any more: the caller then starts nothing
// more.
func (p *Position) Save(ctx context.Context, db rowQuerier, head int64, open tail.Ranges, delivered int64) (ok bool, err error) {
	head, open = p.bound(head, open)
	err = pgx.ErrNoRows
	// An UPDATE by the place of a row removes no earlier versions from its page; one by the key does.
	if p.row != "" && rand.IntN(pruneEvery) > 0 { //nolint:gosec // spreads work, hides nothing
		err = db.QueryRow(ctx, sqlSave, p.Unit, p.Epoch, head, open.String(), delivered, p.row).Scan(&p.row)
	}
	if isNoRows(err) {
		err = db.QueryRow(ctx, sqlSaveByKey, p.Unit, p.Epoch, head, open.String(), delivered).Scan(&p.row)
	}
	switch {
	case isNoRows(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("save a position: %w", err)
	}
	return true, nil
}

// bound is the function of that name, for a position without a copy.
func (p *Position) bound(head int64, open tail.Ranges) (int64, tail.Ranges) {
	if p.exact {
		return head, open
	}
	return bound(head, open)
}

// bound lowers the head until no more than maxOpen ranges are below it.
func bound(head int64, open tail.Ranges) (int64, tail.Ranges) {
	if len(open) <= maxOpen {
		return head, open
	}
	return open[maxOpen].From - 1, open[:maxOpen]
}

// sqlPosition reads the position of a unit.
const sqlPosition = `SELECT head, open::text, delivered, seen::text::bigint, seen_at FROM outbox_positions WHERE unit = $1 AND epoch = $2`

// loadPosition reads the position of a unit. It returns errFenced if the unit does not belong to this relay any more.
func loadPosition(ctx context.Context, conn *session.Conn, l lease.Lease) (p Position, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, roundTrip, errSlow)
	defer cancel()
	p.Lease = l
	var open string
	err = conn.QueryRow(ctx, sqlPosition, l.Unit, l.Epoch).Scan(&p.Head, &open, &p.Delivered, &p.seen.transaction, &p.seen.at)
	switch {
	case isNoRows(err):
		return p, errFenced
	case err == nil:
		p.Open, err = tail.ParseRanges(open)
	}
	if err != nil {
		return p, fmt.Errorf("load a position: %w", err)
	}
	p.seen.cut = cut{head: p.Head, open: p.Open}
	return p, nil
}

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}
