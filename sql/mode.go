package outboxsql

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Mode says how relays read outbox_events.
type Mode string

// The modes.
const (
	// ModeQueue marks each event when it is done; every new table is a queue.
	ModeQueue Mode = "queue"
	// ModeStream never touches events: each destination has a position in them.
	ModeStream Mode = "stream"
)

// Validate returns an error unless m is one of the modes.
func (m Mode) Validate() error {
	switch m {
	case ModeQueue, ModeStream:
		return nil
	}
	return fmt.Errorf("unknown mode %q: use queue or stream", string(m))
}

// ErrMode is returned to a relay of one mode where the table is of the other. It
// does not go away by itself.
var ErrMode = errors.New("outbox_events is of another mode")

// ErrModeChanging is returned where [SetMode] is at work, or was broken off in the
// middle. It goes away with the end of that.
var ErrModeChanging = errors.New("the mode of outbox_events is being changed")

// modeSpace is 'ntfx' in ASCII: the upper half of the mode guard. The lower half
// is the oid of outbox_mode, which stays the same when outbox_events is partitioned.
const modeSpace = 0x6e746678

// modeGuard returns the SQL of the key of the advisory lock that every session
// holds shared that reads or marks events, as long as it lives, so that the mode
// does not change below it. It is NULL where there are no tables.
func modeGuard(schema string) string {
	return fmt.Sprintf("(%d::bigint << 32 | to_regclass(%s)::oid::bigint)", modeSpace, literal(pgx.Identifier{schema, "outbox_mode"}.Sanitize()))
}

// HoldMode makes sure that the table is of the mode that is wanted, and that it
// stays so as long as the session of conn lives. It waits for nothing. The error
// wraps [ErrMode] or [ErrModeChanging], or [ErrNotMigrated] where there are no tables;
// nothing is held then. The session must not be within a transaction.
func HoldMode(ctx context.Context, conn *pgx.Conn, schema string, want Mode) error {
	var held *bool
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock_shared(`+modeGuard(schema)+`)`).Scan(&held); err != nil {
		return fmt.Errorf("hold the mode: %w", err)
	}
	switch {
	case held == nil:
		return fmt.Errorf("schema %q has no outbox_mode: run `notifyd migrate up`: %w", schema, ErrNotMigrated)
	case !*held:
		return fmt.Errorf("schema %q: %w", schema, ErrModeChanging)
	}
	// A statement of its own: its snapshot is not older than the lock.
	mode, becoming, err := readMode(ctx, conn, schema)
	switch {
	case err != nil:
	case becoming != "":
		err = fmt.Errorf("outbox_events of schema %q was to become a %s, and that was broken off: run `notifyd migrate --mode %[2]s` again: %[3]w", schema, becoming, ErrModeChanging)
	case mode != want:
		err = fmt.Errorf("outbox_events of schema %q is a %s, and this relay reads a %s: start it again: %w", schema, mode, want, ErrMode)
	default:
		return nil
	}
	_, uerr := conn.Exec(context.WithoutCancel(ctx), `SELECT pg_advisory_unlock_shared(`+modeGuard(schema)+`)`)
	return errors.Join(err, uerr)
}

// querier is a connection or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// readMode returns the mode of a schema that has the table, and which mode it was
// to get by a change that has not come to its end; "" if there is none.
func readMode(ctx context.Context, q querier, schema string) (mode, becoming Mode, err error) {
	err = q.QueryRow(ctx, `SELECT mode, coalesce(becoming, '') FROM `+pgx.Identifier{schema, "outbox_mode"}.Sanitize()+` WHERE one`).Scan(&mode, &becoming)
	if err != nil {
		return "", "", fmt.Errorf("read the mode: %w", err)
	}
	return mode, becoming, nil
}

// findMode is readMode, and returns ModeQueue where there is no table of modes.
func findMode(ctx context.Context, q querier, schema string) (mode, becoming Mode, err error) {
	var exists bool
	err = q.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, pgx.Identifier{schema, "outbox_mode"}.Sanitize()).Scan(&exists)
	if err != nil {
		return "", "", fmt.Errorf("look for the mode: %w", err)
	}
	if !exists {
		return ModeQueue, "", nil
	}
	return readMode(ctx, q, schema)
}
