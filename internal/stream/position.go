package stream

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/tail"
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
	Open tail.Ranges
	// Delivered is how many deliveries the destination has acknowledged so far.
	Delivered int64
	// Backend is the process id of the server process of the session that owns the unit.
	Backend int32
	// Clean reports that the previous owner handed the unit over, or was this relay, or that there
	// was none.
	Clean bool

	seen anchor
	// sequence is what assigned the ids at the last check, as outbox_positions has it.
	sequence string
	exact    bool // the destination has a copy: all ranges are written, as the two are compared
	proof    *proof
}

// Sure reports whether the session on which the unit was taken was proven alive within the last
// second. While it is false no delivery may start; it may become true again, unless the session is
// lost.
func (p *Position) Sure() bool { return p.proof != nil && p.proof.sure() }

func (p *Position) place() place { return place{destination: p.Destination, part: p.Part} }

// maxOpen bounds the ranges that are written with a position.
const maxOpen = 4096

// sqlSave writes the position of a unit. It changes one row, or none if another relay owns the unit, or the position was moved by
// hand.
const sqlSave = `UPDATE outbox_positions SET head = $3::bigint, open = $4::text::int8multirange,
	delivered = delivered + $5::bigint, updated_at = clock_timestamp(), ` + sqlSeen + ` WHERE unit = $1::int AND epoch = $2::bigint`

// execer is a connection or a transaction.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Save writes the position: head, the open ids up to it, and how many events were acknowledged since the last write. If there
// are more than 4,096 ranges, the written head lies below the surplus, so that a crash repeats a longer suffix of each
// aggregate's deliveries. It returns false if the unit does not belong to this owner any more: the caller then starts nothing
// more, and calls [Keeper.Look].
func (p *Position) Save(ctx context.Context, db execer, head int64, open tail.Ranges, delivered int64) (ok bool, err error) {
	head, open = p.bound(head, open)
	tag, err := db.Exec(ctx, sqlSave, p.Unit, p.Epoch, head, open.String(), delivered)
	if err != nil {
		return false, fmt.Errorf("save a position: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

// bound is the function of that name, for a position without a copy.
func (p *Position) bound(head int64, open tail.Ranges) (int64, tail.Ranges) {
	if p.exact {
		return head, open
	}
	return bound(head, open)
}

// verify checks that the session that owns the unit is on the server that conn leads to. It returns
// errMoved if not.
func (p Position) verify(ctx context.Context, conn *pgx.Conn) error {
	var lives bool
	err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND classid = 'outbox_positions'::regclass::oid AND objid = $1::bigint::oid AND pid = $2)`, int64(p.Unit), p.Backend).Scan(&lives)
	switch {
	case err != nil:
		return fmt.Errorf("find the session that owns the unit: %w", err)
	case !lives:
		return errMoved
	}
	return nil
}

// bound lowers the head until no more than maxOpen ranges are below it.
func bound(head int64, open tail.Ranges) (int64, tail.Ranges) {
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
		RETURNING before.owner, p.destination, p.part, p.unit, p.epoch, p.head, p.open::text, p.delivered, p.seen::text::bigint, p.seen_at`, unit, owner).
		Scan(&before, &got.Destination, &got.Part, &got.Unit, &got.Epoch, &got.Head, &open, &got.Delivered, &got.seen.transaction, &got.seen.at)
	if err != nil {
		return nil, fmt.Errorf("take a position over: %w", err)
	}
	if got.Open, err = tail.ParseRanges(open); err != nil {
		return nil, fmt.Errorf("take a position over: %w", err)
	}
	got.seen.cut = cut{head: got.Head, open: got.Open}
	got.mine = before != nil && *before == owner
	got.Clean = before == nil || got.mine
	return &got, nil
}

// sqlHandOver records that no delivery of a unit is running any more.
const sqlHandOver = `UPDATE outbox_positions SET owner = NULL, updated_at = clock_timestamp() WHERE unit = $1 AND epoch = $2`

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}
