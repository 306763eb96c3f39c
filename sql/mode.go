package outboxsql

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Mode is how relays read outbox_events.
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

// ErrMode is returned to a relay of one mode if the table has the other. Retrying does not help.
var ErrMode = errors.New("outbox_events has another mode")

// ErrModeChanging is returned while [SetMode] is running, or after it was interrupted. It is over
// when the change is finished.
var ErrModeChanging = errors.New("the mode of outbox_events is being changed")

// modeSpace is 'ntfx' in ASCII: the upper half of the mode guard. The lower half
// is the oid of outbox_mode, which stays the same when outbox_events is partitioned.
const modeSpace = 0x6e746678

// modeGuard returns the key of an advisory lock as SQL. Every session that reads or marks events holds the lock in
// shared mode as long as it lives, so the mode cannot change meanwhile. The key is NULL without tables.
func modeGuard(schema string) string {
	return fmt.Sprintf("(%d::bigint << 32 | to_regclass(%s)::oid::bigint)", modeSpace, literal(pgx.Identifier{schema, "outbox_mode"}.Sanitize()))
}

// guardUsers returns the SQL of the process ids of sessions that hold the mode guard, or wait for it.
func guardUsers(schema string) string {
	return `SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND (classid::bigint << 32 | objid::bigint) = ` + modeGuard(schema)
}

// HoldMode ensures that the table has the wanted mode, and prevents a change of the mode while the session of conn
// lives. It does not wait. The error wraps [ErrCopy], [ErrMode], [ErrModeChanging], or [ErrNotMigrated] without tables;
// after an error no lock is held. The session must not be in a transaction.
func HoldMode(ctx context.Context, conn *pgx.Conn, schema string, want Mode) error {
	held, err := holdMode(ctx, conn, "pg_try_advisory_lock_shared", schema, want)
	if held && err != nil {
		_, uerr := conn.Exec(context.WithoutCancel(ctx), `SELECT pg_advisory_unlock_shared(`+modeGuard(schema)+`)`)
		err = errors.Join(err, uerr)
	}
	return err
}

// HoldModeIn is [HoldMode] until the end of a transaction, whose isolation level is read committed.
func HoldModeIn(ctx context.Context, tx Querier, schema string, want Mode) error {
	_, err := holdMode(ctx, tx, "pg_try_advisory_xact_lock_shared", schema, want)
	return err
}

// holdMode takes the guard with a function, and reads the mode.
func holdMode(ctx context.Context, db Querier, lock, schema string, want Mode) (held bool, err error) {
	var is *bool
	if err := db.QueryRow(ctx, `SELECT `+lock+`(`+modeGuard(schema)+`)`).Scan(&is); err != nil {
		return false, fmt.Errorf("hold the mode: %w", err)
	}
	switch {
	case is == nil:
		return false, MissingTables(ctx, db, schema)
	case !*is:
		who := sessions(ctx, db, guardUsers(schema)+` AND mode = 'ExclusiveLock'`)
		return false, fmt.Errorf("schema %q: %w, or another session keeps relays away (%s)", schema, ErrModeChanging, who)
	}
	// Use a separate statement: its snapshot must not be older than the lock.
	mode, becoming, home, err := readMode(ctx, db, schema)
	if err == nil {
		err = home.Check(schema)
	}
	switch {
	case err != nil:
		return true, err
	case becoming != "":
		return true, fmt.Errorf("changing outbox_events of schema %q to a %s was interrupted: run `notifyd migrate --mode %[2]s` again: %[3]w", schema, becoming, ErrModeChanging)
	case mode != want:
		return true, fmt.Errorf("outbox_events of schema %q is a %s, and this relay reads a %s: restart it: %w", schema, mode, want, ErrMode)
	}
	return true, nil
}

// readMode returns the mode of a migrated schema, the target mode of an unfinished change, "" without a change, and the home.
func readMode(ctx context.Context, q Querier, schema string) (mode, becoming Mode, home Home, err error) {
	var is, here string
	err = q.QueryRow(ctx, `SELECT mode, coalesce(becoming, ''), coalesce(home, ''), `+pgx.Identifier{schema, "outbox_place"}.Sanitize()+`(tableoid)
		FROM `+pgx.Identifier{schema, "outbox_mode"}.Sanitize()+` WHERE one`).Scan(&mode, &becoming, &is, &here)
	if err != nil {
		return "", "", Home{}, fmt.Errorf("read the mode: %w", err)
	}
	return mode, becoming, Home{Is: Place(is), Here: Place(here)}, nil
}
