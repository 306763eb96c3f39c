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

// Position is the row of one shard, as it was when this relay loaded it.
type Position struct {
	lease.Lease

	// All ids up to Head are acknowledged, or in Open.
	Head int64
	Open tail.Ranges
	// Delivered is how many deliveries the destination has acknowledged so far.
	Delivered int64
	// Shards is the number of shards of the destination. Former has the positions of its shards before that number
	// changed.
	Shards int
	Former Former

	// Exact reports that the destination keeps a copy. Then all ranges are written, because the two are compared.
	Exact bool
	// Sequence identifies the sequence that assigned the ids at the last check, as outbox_positions has it.
	Sequence string

	seen anchor
	row  string // ctid of the row at this relay's last write; empty: not known
}

// maxOpen bounds the ranges that are written with a position.
const maxOpen = 4096

const (
	setSave = `UPDATE outbox_positions SET head = $3::bigint, open = $4::text::int8multirange,
	delivered = delivered + $5::bigint, updated_at = clock_timestamp(), ` + SQLSeen + ` WHERE number = $1::int AND epoch = $2::bigint`

	// sqlSave writes the position of a shard. It changes one row, or none if another relay owns the shard, or a person
	// moved the position. It finds the row by ctid: under an old snapshot all versions since stay, and a search by the
	// key would read them.
	sqlSave = setSave + ` AND ctid = $6::text::tid RETURNING ctid::text`
	// sqlSaveByKey writes the position after another writer has changed the row.
	sqlSaveByKey = setSave + ` RETURNING ctid::text`
)

// pruneEvery is the average number of saves per save that finds the row by its key.
const pruneEvery = 16

// Save writes the position: head, the open ids up to it, and how many events were acknowledged since the last write. If
// there are more than 4,096 ranges, it lowers the written head below the surplus, so that a crash repeats a longer
// suffix of each aggregate's deliveries. It returns false if the shard no longer belongs to this owner: the caller then
// starts nothing more.
func (p *Position) Save(ctx context.Context, db Querier, head int64, open tail.Ranges, delivered int64) (ok bool, err error) {
	head, open = p.Bound(head, open)
	err = pgx.ErrNoRows
	// An UPDATE by ctid removes no earlier versions from the page; one by the key does.
	if p.row != "" && rand.IntN(pruneEvery) > 0 { //nolint:gosec // spreads work, hides nothing
		err = db.QueryRow(ctx, sqlSave, p.PositionID, p.Epoch, head, open.String(), delivered, p.row).Scan(&p.row)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		err = db.QueryRow(ctx, sqlSaveByKey, p.PositionID, p.Epoch, head, open.String(), delivered).Scan(&p.row)
	}
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("save a position: %w", err)
	}
	return true, nil
}

// Bound applies [Bound] to a position without a copy. It changes nothing for a position with a copy.
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

// sqlPosition reads the position of a shard.
const sqlPosition = `SELECT head, open::text, delivered, shards, former::text, seen::text::bigint, seen_at FROM outbox_positions WHERE number = $1 AND epoch = $2`

// Load reads the position of a shard. It returns [ErrFenced] if the shard no longer belongs to this relay.
func Load(ctx context.Context, conn *session.Conn, l lease.Lease) (p Position, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, RoundTrip, ErrSlow)
	defer cancel()
	p.Lease = l
	var open, former string
	err = conn.QueryRow(ctx, sqlPosition, l.PositionID, l.Epoch).Scan(&p.Head, &open, &p.Delivered, &p.Shards, &former, &p.seen.transaction, &p.seen.at)
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
	// ErrFenced means that another relay has the shard. For the search for events without a route it also means that
	// routes have changed, even by this relay.
	ErrFenced = errors.New("the shard was taken over, or routes have changed, since it was read")

	// ErrSlow is the cause of an interrupted use of a connection.
	ErrSlow = fmt.Errorf("the database did not answer within %v", RoundTrip)
)

// ErrIDs means that the sequence assigns ids again that a position has passed: it was set back, or restarted with its
// table. Events with such ids would be missed, so nothing is delivered until a person has moved the position.
var ErrIDs = errors.New("the sequence of outbox_events.id gives out ids again")

// errAltered means that the last id cannot be read at this moment.
var errAltered = errors.New("read the sequence: it is being altered")

// anchor is what a position had passed at a moment, with the number of the next transaction.
type anchor struct {
	tail.Watermark

	transaction *int64
	at          *time.Time
}

const (
	// SQLSeen makes a write of a position its anchor. All ids that the position has passed were visible before.
	SQLSeen = `seen = pg_snapshot_xmax(pg_current_snapshot()), seen_at = clock_timestamp()`

	// sqlIDs reads the last id; it is NULL at the moment in which ALTER SEQUENCE replaces the file of the sequence. Of
	// the last hundred ids of an anchor it returns the ids of events that were written since: the sequence has assigned
	// these again. An UPDATE or a rewrite of the table gives an event another transaction, but the event is older.
	// Transaction numbers of rows have 32 bits.
	sqlIDs = `SELECT outbox_last_id(), pg_get_serial_sequence('outbox_events', 'id'), coalesce(p.sequence, ''), ` + outboxsql.SQLSequence + `, p.reused, s.next, clock_timestamp(),
		ARRAY(SELECT e.id FROM outbox_events AS e WHERE e.id > $3::bigint - 100 AND e.id <= $3 AND e.created_at > $5
			AND s.next - $4::bigint BETWEEN 1 AND 2147483647 AND ((s.next - e.xmin::text::bigint) & 4294967295) <= s.next - $4 ORDER BY e.id),
		coalesce((SELECT id FROM outbox_events ORDER BY id DESC LIMIT 1), 0)
	FROM outbox_positions AS p, (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next) AS s WHERE p.number = $1 AND p.epoch = $2`

	// sqlReused marks all positions that have passed possibly reused ids. The mark outlives its cause: the sequence may
	// overtake the position, and events with reused ids are still not delivered.
	sqlReused = `UPDATE outbox_positions SET reused = least(reused, $1) WHERE (head > $1 OR EXISTS (SELECT FROM jsonb_array_elements(former) AS s, jsonb_array_elements(s) AS w WHERE (w ->> 'head')::bigint > $1)) AND ($2 OR sequence IS DISTINCT FROM $3)`

	sqlSequence = `UPDATE outbox_positions SET sequence = $3 WHERE number = $1 AND epoch = $2`
)

// CheckIDs checks whether the sequence has assigned ids again that a position has passed since its anchor. It then
// makes the given watermark the next anchor. The connection leads to the server life in which that was read, so a
// crash, which may take back ids together with their events, does not count.
func (p *Position) CheckIDs(ctx context.Context, conn *session.Conn, read tail.Watermark) error {
	ctx, cancel := context.WithTimeoutCause(ctx, RoundTrip, ErrSlow)
	defer cancel()
	var last *int64
	var next, highest int64
	var name, before, now string
	var reused *int64
	var at time.Time
	var again []int64
	err := conn.QueryRow(ctx, sqlIDs, p.PositionID, p.Epoch, p.seen.Head, p.seen.transaction, p.seen.at).Scan(&last, &name, &before, &now, &reused, &next, &at, &again, &highest)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return ErrFenced
	case err != nil:
		return fmt.Errorf("read the sequence: %w", err)
	case last == nil:
		return errAltered
	}
	again = slices.DeleteFunc(again, p.seen.Open.Contains)
	// A position at 0 has passed no id that could be assigned again.
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
			if _, err := conn.Exec(ctx, sqlSequence, p.PositionID, p.Epoch, now); err != nil {
				return fmt.Errorf("store the sequence: %w", err)
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

// Replaced reports whether another sequence assigns the ids, or the same one was restarted with its table. An altered
// sequence is the same; ALTER SEQUENCE ... RESTART shows in the ids.
func Replaced(before, now string) bool {
	b, n := strings.Fields(before), strings.Fields(now)
	return len(b) == 3 && len(n) == 3 && (b[0] != n[0] || b[1] != n[1] && b[2] != n[2])
}
