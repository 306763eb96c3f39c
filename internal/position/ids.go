package position

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
	outboxsql "github.com/notifyd/notifyd/sql"
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
