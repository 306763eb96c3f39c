package position

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

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
	// Shards is how many shards the destination has. Former is how far they had come before their number changed.
	Shards int
	Former Former

	// Exact says that the destination has a copy: all ranges are written, as the two are compared.
	Exact bool
	// Sequence is what assigned the ids at the last check, as outbox_positions has it.
	Sequence string

	seen anchor
	row  string // the ctid of the row as this relay has written it last; empty: not known
}

// maxOpen bounds the ranges that are written with a position.
const maxOpen = 4096

const (
	setSave = `UPDATE outbox_positions SET head = $3::bigint, open = $4::text::int8multirange,
	delivered = delivered + $5::bigint, updated_at = clock_timestamp(), ` + SQLSeen + ` WHERE unit = $1::int AND epoch = $2::bigint`

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
func (p *Position) Save(ctx context.Context, db Querier, head int64, open tail.Ranges, delivered int64) (ok bool, err error) {
	head, open = p.Bound(head, open)
	err = pgx.ErrNoRows
	// An UPDATE by the place of a row removes no earlier versions from its page; one by the key does.
	if p.row != "" && rand.IntN(pruneEvery) > 0 { //nolint:gosec // spreads work, hides nothing
		err = db.QueryRow(ctx, sqlSave, p.Unit, p.Epoch, head, open.String(), delivered, p.row).Scan(&p.row)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		err = db.QueryRow(ctx, sqlSaveByKey, p.Unit, p.Epoch, head, open.String(), delivered).Scan(&p.row)
	}
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("save a position: %w", err)
	}
	return true, nil
}

// Bound is [Bound] for a position without a copy, and changes nothing for one with a copy.
func (p *Position) Bound(head int64, open tail.Ranges) (int64, tail.Ranges) {
	if p.Exact {
		return head, open
	}
	return Bound(head, open)
}

// Bound lowers the head until no more than 4,096 ranges are below it.
func Bound(head int64, open tail.Ranges) (int64, tail.Ranges) {
	if len(open) <= maxOpen {
		return head, open
	}
	return open[maxOpen].From - 1, open[:maxOpen]
}

// sqlPosition reads the position of a unit.
const sqlPosition = `SELECT head, open::text, delivered, shards, former::text, seen::text::bigint, seen_at FROM outbox_positions WHERE unit = $1 AND epoch = $2`

// Load reads the position of a unit. It returns [ErrFenced] if the unit does not belong to this relay any more.
func Load(ctx context.Context, conn *session.Conn, l lease.Lease) (p Position, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, RoundTrip, ErrSlow)
	defer cancel()
	p.Lease = l
	var open, former string
	err = conn.QueryRow(ctx, sqlPosition, l.Unit, l.Epoch).Scan(&p.Head, &open, &p.Delivered, &p.Shards, &former, &p.seen.transaction, &p.seen.at)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return p, ErrFenced
	case err == nil:
		if p.Open, err = tail.ParseRanges(open); err == nil {
			p.Former, err = ParseFormer(former)
		}
	}
	if err != nil {
		return p, fmt.Errorf("load a position: %w", err)
	}
	p.seen.Watermark = tail.Watermark{Head: p.Head, Open: p.Open}
	return p, nil
}

// Querier is a connection or a transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// RoundTrip bounds one continuous use of a connection by a shard.
const RoundTrip = 15 * time.Second

var (
	// ErrFenced means that another relay has the shard, or, for the search for events without a route, that routes have
	// changed, also those of this relay.
	ErrFenced = errors.New("the unit has been taken over, or routes have changed, since it was read")

	// ErrSlow is the cause of an interrupted use of a connection.
	ErrSlow = fmt.Errorf("the database did not answer within %v", RoundTrip)
)
