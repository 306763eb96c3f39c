package outboxsql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
)

// SerializeOptions configure [SerializeWriters]; the zero value is valid.
type SerializeOptions struct {
	// LockPatience is how long to try to lock the table for a moment, while writers use it; 0 is
	// [DefaultLockPatience].
	LockPatience time.Duration
	// Waiting, if set, is called now and then with the sessions whose locks SerializeWriters waits for.
	Waiting func(line string)
}

// SerializeWriters switches the serialization of writers of outbox_events on or off, after [Migrate]. A serialized
// transaction that inserts waits until the earlier inserting transactions have ended, and only then draws ids. So ids
// are in commit order, and an id is missing only after a rollback. Each transaction delays the others from its first
// insert to its end. Inserts into a named partition, inserts with explicit ids, and sessions without triggers are not
// serialized.
//
// SerializeWriters does nothing if the table already has the wanted setting. Otherwise it locks the table for some
// milliseconds; each attempt delays writers for 200 ms at most. Relays keep running.
func SerializeWriters(ctx context.Context, conn *pgx.Conn, schema string, on bool, o SerializeOptions) (err error) {
	if err := pgschema.Validate(schema); err != nil {
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
		return fmt.Errorf("switch serialized writers of schema %q %s: %w", schema, state, err)
	}

	return nil
}

// serialized reports whether writers of outbox_events are serialized; false without a table.
func serialized(ctx context.Context, q pgschema.Querier, schema string) (on bool, err error) {
	err = q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
		WHERE t.tgrelid = to_regclass($1) AND t.tgname = 'outbox_events_serialize' AND t.tgenabled IN ('O', 'A')
			AND p.proname = 'outbox_serialize')`,
		pgx.Identifier{schema, "outbox_events"}.Sanitize()).Scan(&on)
	if err != nil {
		return false, fmt.Errorf("check whether writers are serialized: %w", err)
	}
	return on, nil
}
