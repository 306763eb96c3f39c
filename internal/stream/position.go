package stream

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Position is the row of one unit, as it was when this relay took it over.
type Position struct {
	// Destination is empty for the router.
	Destination string
	Part        int
	// Unit is the number of the unit's advisory lock.
	Unit int32
	// Epoch numbers the ownerships: the next owner's is higher.
	Epoch int64
	// All ids up to Head are acknowledged, or in Open.
	Head int64
	Open Ranges
	// Delivered is how many deliveries the destination has acknowledged so far.
	Delivered int64
	// Backend is the process id of the server process of the session that owns the unit.
	Backend int32
	// Clean reports that the previous owner handed the unit over, or was this relay, or that there
	// was none.
	Clean bool

	exact bool // the destination has a copy: all ranges are written, as the two are compared
	proof *proof
}

// Sure reports whether the session on which the unit was taken was proven alive within the last
// second. While it is false no delivery may start; it may become true again, unless the session is
// lost.
func (p *Position) Sure() bool { return p.proof != nil && p.proof.sure() }

func (p *Position) place() place { return place{destination: p.Destination, part: p.Part} }

// maxOpen bounds the ranges that are written with a position.
const maxOpen = 4096

// SaveSQL writes the position of a unit. Its parameters are those of [Position.SaveParams]. It
// changes one row, or none if another relay owns the unit, or the position was moved by hand. The
// caller then starts nothing more, and calls [Keeper.Look].
const SaveSQL = `UPDATE outbox_positions SET head = $3::bigint, open = $4::text::int8multirange,
	delivered = delivered + $5::bigint, updated_at = clock_timestamp() WHERE unit = $1::int AND epoch = $2::bigint`

// SaveParams returns the parameters of [SaveSQL], as text, to be sent with other statements in one
// flight. delivered is how many events were acknowledged since the last write. If there are more
// than 4,096 ranges, the written head lies below the surplus, so that a crash repeats a longer
// suffix of each aggregate's deliveries.
func (p *Position) SaveParams(head int64, open Ranges, delivered int64) [][]byte {
	head, open = p.bound(head, open)
	return [][]byte{
		strconv.AppendInt(nil, int64(p.Unit), 10),
		strconv.AppendInt(nil, p.Epoch, 10),
		strconv.AppendInt(nil, head, 10),
		[]byte(open.String()),
		strconv.AppendInt(nil, delivered, 10),
	}
}

// execer is a connection or a transaction.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Save runs [SaveSQL]. It returns false if the unit does not belong to this owner any more.
func (p *Position) Save(ctx context.Context, db execer, head int64, open Ranges, delivered int64) (ok bool, err error) {
	head, open = p.bound(head, open)
	tag, err := db.Exec(ctx, SaveSQL, p.Unit, p.Epoch, head, open.String(), delivered)
	if err != nil {
		return false, fmt.Errorf("save a position: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

// bound is the function of that name, for a position without a copy.
func (p *Position) bound(head int64, open Ranges) (int64, Ranges) {
	if p.exact {
		return head, open
	}
	return bound(head, open)
}

// bound lowers the head until no more than maxOpen ranges are below it.
func bound(head int64, open Ranges) (int64, Ranges) {
	if len(open) <= maxOpen {
		return head, open
	}
	return open[maxOpen].From - 1, open[:maxOpen]
}

// takeOver makes the relay the owner of a unit whose lock it holds.
func takeOver(ctx context.Context, conn *pgx.Conn, owner int64, unit int32) (*taken, error) {
	var got taken
	var before *int64
	var open string
	// Only the holder of the lock changes the owner, so it is the same in both reads of the row.
	err := conn.QueryRow(ctx, `WITH before AS (SELECT unit, owner FROM outbox_positions WHERE unit = $1)
		UPDATE outbox_positions AS p SET epoch = p.epoch + 1, owner = $2, updated_at = clock_timestamp()
		FROM before WHERE p.unit = before.unit
		RETURNING before.owner, p.destination, p.part, p.unit, p.epoch, p.head, p.open::text, p.delivered`, unit, owner).
		Scan(&before, &got.Destination, &got.Part, &got.Unit, &got.Epoch, &got.Head, &open, &got.Delivered)
	if err != nil {
		return nil, fmt.Errorf("take a position over: %w", err)
	}
	if got.Open, err = ParseRanges(open); err != nil {
		return nil, fmt.Errorf("take a position over: %w", err)
	}
	got.mine = before != nil && *before == owner
	got.Clean = before == nil || got.mine
	return &got, nil
}

// sqlHandOver records that no delivery of a unit is running any more.
const sqlHandOver = `UPDATE outbox_positions SET owner = NULL, updated_at = clock_timestamp() WHERE unit = $1 AND epoch = $2`

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
	Open Ranges
	// Delivered is how many deliveries the destination has acknowledged so far.
	Delivered int64
	// Lag is how many ids the destination still has to handle: those above Head and those in Open.
	// Some of them have no event, and some events are not for it.
	Lag int64
	// UpdatedAt is when the position last changed.
	UpdatedAt time.Time
}

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
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
		p.Open, err = ParseRanges(open)
		p.Lag += p.Open.IDs()
		return p, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the positions: %w", err)
	}
	return all, nil
}
