// Package modelock holds the mode of an outbox while a relay reads it.
package modelock

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Hold ensures that the table has the wanted mode, and prevents a change of the mode while the session of conn
// lives. It does not wait. The error wraps [outboxsql.ErrCopy], [outboxsql.ErrMode],
// [outboxsql.ErrModeChanging], or [outboxsql.ErrNotMigrated] without tables;
// after an error no lock is held. The session must not be in a transaction.
func Hold(ctx context.Context, conn *pgx.Conn, schema string, want outboxsql.Mode) error {
	held, err := hold(ctx, conn, "pg_try_advisory_lock_shared", schema, want)
	if held && err != nil {
		_, uerr := conn.Exec(context.WithoutCancel(ctx), `SELECT pg_advisory_unlock_shared(`+pgschema.ModeGuard(schema)+`)`)
		err = errors.Join(err, uerr)
	}
	return err
}

// HoldIn is [Hold] until the end of a transaction, whose isolation level is read committed.
func HoldIn(ctx context.Context, tx pgschema.Querier, schema string, want outboxsql.Mode) error {
	_, err := hold(ctx, tx, "pg_try_advisory_xact_lock_shared", schema, want)
	return err
}

// hold takes the guard with a function, and reads the mode.
func hold(ctx context.Context, db pgschema.Querier, lock, schema string, want outboxsql.Mode) (held bool, err error) {
	var is *bool
	if err := db.QueryRow(ctx, `SELECT `+lock+`(`+pgschema.ModeGuard(schema)+`)`).Scan(&is); err != nil {
		return false, fmt.Errorf("hold the mode: %w", err)
	}

	switch {
	case is == nil:
		return false, pgschema.MissingTables(ctx, db, schema)
	case !*is:
		who := pgschema.Sessions(ctx, db, pgschema.GuardUsers(schema)+` AND mode = 'ExclusiveLock'`)
		return false, fmt.Errorf("schema %q: %w, or another session keeps relays away (%s)", schema, outboxsql.ErrModeChanging, who)
	}

	// Use a separate statement: its snapshot must not be older than the lock.
	row, err := pgschema.ReadMode(ctx, db, schema)
	if err != nil {
		return true, err
	}

	home := outboxsql.Home{Is: outboxsql.Place(row.Home), Here: outboxsql.Place(row.Here)}
	if err := home.Check(schema); err != nil {
		return true, err
	}

	switch {
	case row.Becoming != "":
		return true, fmt.Errorf("changing outbox_events of schema %q to a %s was interrupted: run `notifyd migrate --mode %[2]s` again: %[3]w",
			schema, row.Becoming, outboxsql.ErrModeChanging)
	case row.Mode != string(want):
		return true, fmt.Errorf("outbox_events of schema %q is a %s, and this relay reads a %s: restart it: %w",
			schema, row.Mode, want, outboxsql.ErrMode)
	}

	return true, nil
}

// EndsRelay reports whether an error ends a relay, because retrying does not help: [outboxsql.ErrMode] and [outboxsql.ErrCopy].
func EndsRelay(err error) bool {
	return errors.Is(err, outboxsql.ErrMode) || errors.Is(err, outboxsql.ErrCopy)
}
