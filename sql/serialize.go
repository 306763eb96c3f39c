package outboxsql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// SerializeOptions configure [SerializeWriters]; the zero value is valid.
type SerializeOptions struct {
	// LockPatience is how long to try to lock the table for a moment, while writers use it; 0 is
	// [DefaultLockPatience].
	LockPatience time.Duration
	// Waiting, if set, is called now and then with the sessions whose locks SerializeWriters waits for.
	Waiting func(line string)
}

// SerializeWriters makes writers of outbox_events stand in line, or lets them write side by side, after [Migrate].
// In line, a transaction that inserts waits until those that have inserted before it have ended, and
// only then draws ids: ids are in the order of commits, and one is missing only where a transaction
// was rolled back. Each transaction holds up the others from its first insert to its end. Inserts
// that name a partition, or ids of their own, pass the line, and so do sessions in which no triggers
// fire. SerializeWriters does nothing if the table is as wanted. It locks the table for some
// milliseconds, each attempt holds up writers for 200 ms at most, and relays need not be stopped.
func SerializeWriters(ctx context.Context, conn *pgx.Conn, schema string, on bool, o SerializeOptions) (err error) {
	if err := ValidateSchema(schema); err != nil {
		return err
	}
	if err := Check(ctx, conn, schema); err != nil {
		return err
	}
	c := &change{conn: conn, schema: schema, patience: o.LockPatience, waiting: o.Waiting}
	unlock, err := c.lockSchema(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock(ctx)) }()
	state := "off"
	if on {
		state = "on"
	}
	if err := c.alone(ctx, "SET LOCAL notifyd.serialize = '"+state+"';\n"+triggersSQL); err != nil {
		return fmt.Errorf("turn the line of writers of schema %q %s: %w", schema, state, err)
	}
	return nil
}

// serialized reports whether writers of outbox_events stand in line; false if there is no table.
func serialized(ctx context.Context, q Querier, schema string) (on bool, err error) {
	err = q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
		WHERE t.tgrelid = to_regclass($1) AND t.tgname = 'outbox_events_serialize' AND t.tgenabled IN ('O', 'A') AND p.proname = 'outbox_serialize')`,
		pgx.Identifier{schema, "outbox_events"}.Sanitize()).Scan(&on)
	if err != nil {
		return false, fmt.Errorf("find the line of writers: %w", err)
	}
	return on, nil
}
