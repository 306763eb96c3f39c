package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ErrIDs says that ids are not what a stream takes them for: the sequence is behind an
// event that was read, or was begun anew. Events whose ids were given out before would
// be passed over, so nothing is delivered until a person has looked at it.
var ErrIDs = errors.New("the sequence of outbox_events.id gives out ids again")

// sequence is the one that was last looked at. The file changes when it is begun anew, by
// TRUNCATE ... RESTART IDENTITY as by ALTER SEQUENCE; a table that is partitioned gets
// another sequence, which goes on where the one before ended.
type sequence struct{ oid, file int64 }

// begunAnew reports whether the same sequence was.
func (s sequence) begunAnew(now sequence) bool { return s.oid == now.oid && s.file != now.file }

// sqlIDs says how far the sequence is, what it is called, and where it is.
const sqlIDs = `SELECT coalesce(outbox_last_id(), 0), s.name, s.name::regclass::oid::bigint, coalesce(pg_relation_filenode(s.name::regclass)::bigint, 0)
FROM (SELECT pg_get_serial_sequence('outbox_events', 'id') AS name) AS s`

// checkIDs compares the sequence with the highest id that a unit has read. The
// connection leads to the server in whose life that was read, so that a crash, which
// may take ids back together with their events, is not taken for this; and ids are
// drawn before they can be read. It returns an error that wraps [ErrIDs] where the
// sequence is behind, or was begun anew while this relay ran: it may have caught up since.
func (e *Engine) checkIDs(ctx context.Context, conn *pgx.Conn, destination string, head int64) error {
	var last int64
	var name string
	var now sequence
	if err := conn.QueryRow(ctx, sqlIDs).Scan(&last, &name, &now.oid, &now.file); err != nil {
		return fmt.Errorf("look at the sequence: %w", err)
	}
	e.mu.Lock()
	anew := e.sequence.begunAnew(now)
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
