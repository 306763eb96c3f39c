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

// sqlIDs says how far the sequence is, what it is called, and where its data is: that
// changes when it is begun anew, by TRUNCATE ... RESTART IDENTITY as by ALTER SEQUENCE.
const sqlIDs = `SELECT coalesce(outbox_last_id(), 0), s.name, coalesce(pg_relation_filenode(s.name::regclass)::bigint, 0)
FROM (SELECT pg_get_serial_sequence('outbox_events', 'id') AS name) AS s`

// checkIDs compares the sequence with the highest id that a unit has read. The
// connection leads to the server in whose life that was read, so that a crash, which
// may take ids back together with their events, is not taken for this; and ids are
// drawn before they can be read. It returns an error that wraps [ErrIDs] where the
// sequence is behind, or was begun anew while this relay ran: it may have caught up since.
func (e *Engine) checkIDs(ctx context.Context, conn *pgx.Conn, destination string, head int64) error {
	var last, file int64
	var name string
	if err := conn.QueryRow(ctx, sqlIDs).Scan(&last, &name, &file); err != nil {
		return fmt.Errorf("look at the sequence: %w", err)
	}
	e.mu.Lock()
	before := e.sequence
	if before == 0 {
		e.sequence = file
	}
	e.mu.Unlock()
	if last >= head && (before == 0 || before == file) {
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
