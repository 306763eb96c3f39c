package position

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lease"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
	outboxsql "github.com/notifyd/notifyd/sql"
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

// ErrIDs means that the sequence has given out ids again that a position has passed: it was set back, or restarted with
// its table. Events that got such an id would be missed, so nothing is delivered until a person has moved the position.
var ErrIDs = errors.New("the sequence of outbox_events.id gives out ids again")

// errAltered means that the last id cannot be read in this moment.
var errAltered = errors.New("read the sequence: it is being altered")

// anchor is what a position had passed at a moment, by transactions below that one.
type anchor struct {
	tail.Watermark

	transaction *int64
	at          *time.Time
}

const (
	// SQLSeen makes a write of a position its anchor. Whatever it has passed was visible before.
	SQLSeen = `seen = pg_snapshot_xmax(pg_current_snapshot()), seen_at = clock_timestamp()`

	// sqlIDs finds the last id, NULL in the moment in which ALTER SEQUENCE replaces the file of the sequence, and the ids of an anchor, in its last hundred, that events have got since. Where the sequence has passed
	// the position again it has given these out again. An event that an UPDATE or a rewrite of the table has given
	// another transaction is older. Transaction numbers of rows have 32 bits.
	sqlIDs = `SELECT outbox_last_id(), pg_get_serial_sequence('outbox_events', 'id'), coalesce(p.sequence, ''), ` + outboxsql.SQLSequence + `, p.reused, s.next, clock_timestamp(),
		ARRAY(SELECT e.id FROM outbox_events AS e WHERE e.id > $3::bigint - 100 AND e.id <= $3 AND e.created_at > $5
			AND s.next - $4::bigint BETWEEN 1 AND 2147483647 AND ((s.next - e.xmin::text::bigint) & 4294967295) <= s.next - $4 ORDER BY e.id),
		coalesce((SELECT id FROM outbox_events ORDER BY id DESC LIMIT 1), 0)
	FROM outbox_positions AS p, (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next) AS s WHERE p.unit = $1 AND p.epoch = $2`

	// sqlReused marks all positions that have passed ids that may have been given out again. A mark outlives its cause: the
	// sequence may pass the position, and what got such an id is still not delivered.
	sqlReused = `UPDATE outbox_positions SET reused = least(reused, $1) WHERE (head > $1 OR EXISTS (SELECT FROM jsonb_array_elements(former) AS s, jsonb_array_elements(s) AS w WHERE (w ->> 'head')::bigint > $1)) AND ($2 OR sequence IS DISTINCT FROM $3)`

	sqlSequence = `UPDATE outbox_positions SET sequence = $3 WHERE unit = $1 AND epoch = $2`
)

// CheckIDs finds out whether the sequence has given out ids again that a position has passed since its anchor, and makes what it
// has read by now the next anchor. The connection leads to the server life in which that was read, so a crash, which may
// take back ids together with their events, does not count.
func (p *Position) CheckIDs(ctx context.Context, conn *session.Conn, read tail.Watermark) error {
	ctx, cancel := context.WithTimeoutCause(ctx, RoundTrip, ErrSlow)
	defer cancel()
	var last *int64
	var next, highest int64
	var name, before, now string
	var reused *int64
	var at time.Time
	var again []int64
	err := conn.QueryRow(ctx, sqlIDs, p.Unit, p.Epoch, p.seen.Head, p.seen.transaction, p.seen.at).Scan(&last, &name, &before, &now, &reused, &next, &at, &again, &highest)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return ErrFenced
	case err != nil:
		return fmt.Errorf("read the sequence: %w", err)
	case last == nil:
		return errAltered
	}
	again = slices.DeleteFunc(again, p.seen.Open.Contains)
	// A position at 0 has passed nothing that could come again.
	passed := max(read.Head, p.Former.Head())
	other := passed > 0 && (Replaced(before, now) || p.seen.transaction != nil && *p.seen.transaction > next)
	var why string
	from := int64(0)
	switch {
	case reused != nil:
		why = fmt.Sprintf("ids above %d may have been given out again", *reused)
	case other:
		why = "the sequence or its table was restarted, or restored, since the position was written"
	case *last < passed:
		why, from = fmt.Sprintf("%s is at %d", name, *last), *last
	case len(again) > 0:
		why, from = fmt.Sprintf("event %d was written after the position had passed its id", again[0]), again[0]-1
	default:
		p.seen, p.Sequence = anchor{tail.Watermark{Head: read.Head, Open: slices.Clone(read.Open)}, &next, &at}, now
		if before != now {
			if _, err := conn.Exec(ctx, sqlSequence, p.Unit, p.Epoch, now); err != nil {
				return fmt.Errorf("note the sequence: %w", err)
			}
		}
		return nil
	}
	if reused == nil {
		if _, err := conn.Exec(ctx, sqlReused, from, !other, now); err != nil {
			return fmt.Errorf("mark the positions that have passed ids that are given out again: %w", err)
		}
	}
	whose := "the search for event types without a route"
	if p.Destination != "" {
		whose = fmt.Sprintf("destination %q", p.Destination)
	}
	return fmt.Errorf("%w: %s, and %s has passed %d: %s", ErrIDs, why, whose, passed, outboxsql.CureOfIDs(name, *last, max(passed, highest)))
}

// Replaced reports whether another sequence assigns the ids, or the same one was restarted with its table. One that was only
// altered goes on; ALTER SEQUENCE ... RESTART shows in the ids.
func Replaced(before, now string) bool {
	b, n := strings.Fields(before), strings.Fields(now)
	return len(b) == 3 && len(n) == 3 && (b[0] != n[0] || b[1] != n[1] && b[2] != n[2])
}
