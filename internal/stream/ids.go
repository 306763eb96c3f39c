package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ErrIDs means that ids do not satisfy the assumptions of a stream: the sequence is behind an event
// that was read, or was restarted. Events that reuse ids would be missed, so nothing is delivered
// until a person has checked the table.
var ErrIDs = errors.New("the sequence of outbox_events.id gives out ids again")

// sequence identifies the sequence that was last read. Its file changes when it is restarted, by
// TRUNCATE ... RESTART IDENTITY as by ALTER SEQUENCE. A table that is partitioned gets another
// sequence, which continues where the previous one ended.
type sequence struct{ oid, file int64 }

// restarted reports whether the same sequence was restarted.
func (s sequence) restarted(now sequence) bool { return s.oid == now.oid && s.file != now.file }

// sqlIDs returns the last id of the sequence, its name, and its place.
const sqlIDs = `SELECT coalesce(outbox_last_id(), 0), s.name, s.name::regclass::oid::bigint, coalesce(pg_relation_filenode(s.name::regclass)::bigint, 0)
FROM (SELECT pg_get_serial_sequence('outbox_events', 'id') AS name) AS s`

// checkIDs compares the sequence with the highest id that a unit has read. The connection leads to
// the server life in which that id was read, so a crash, which may take back ids together with
// their events, does not count; and ids are drawn before they can be read. It returns an error that
// wraps [ErrIDs] if the sequence is behind, or was restarted while this relay ran: it may have
// caught up since.
func (e *Engine) checkIDs(ctx context.Context, conn *pgx.Conn, destination string, head int64) error {
	var last int64
	var name string
	var now sequence
	if err := conn.QueryRow(ctx, sqlIDs).Scan(&last, &name, &now.oid, &now.file); err != nil {
		return fmt.Errorf("read the sequence: %w", err)
	}
	e.mu.Lock()
	anew := e.sequence.restarted(now)
	if !anew {
		e.sequence = now
	}
	e.mu.Unlock()
	if last >= head && !anew {
		return nil
	}
	whose := "the router"
	if destination != "" {
		whose = fmt.Sprintf("destination %q", destination)
	}
	return fmt.Errorf("%w: %s has given out ids up to %d, and %s has read up to %d; events with an id up to that are not delivered. "+
		"If the table was emptied on purpose, stop all relays and begin anew: DELETE FROM outbox_routes; DELETE FROM outbox_positions; "+
		"UPDATE outbox_mode SET origin_head = 0, origin_open = '{}'. If not, let the sequence go on: SELECT setval('%[2]s', %[6]d)",
		ErrIDs, name, last, whose, head, max(last, head))
}
