// Package outboxsql holds the tables and the trigger of notifyd as SQL, and applies them.
//
// The files are self-contained and can be run with psql: schema.sql, functions.sql and triggers.sql,
// in this order. A program calls [MigratePool] when it starts: it does the same under a lock and records the version.
// [Migrate] has options. [SetMode] makes the table a queue or a stream, [Partition] partitions it by day, and [Grants] returns
// the privileges of writers and relays.
package outboxsql

import (
	"cmp"
	"context"
	_ "embed" // the files below
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/pgschema"
)

//go:embed schema.sql
var schemaSQL string

//go:embed functions.sql
var functionsSQL string

//go:embed triggers.sql
var triggersSQL string

// DefaultSchema is the schema of a configuration that names none.
const DefaultSchema = "public"

// lockSpace is 'ntfm' in ASCII: the upper half of the advisory lock that keeps two migrations of
// one schema apart. The lower half is a hash of the schema's name.
const lockSpace = 0x6e74666d

// NotifyMode selects when the trigger notifies.
type NotifyMode string

// The notify modes.
const (
	// NotifyKeep leaves the mode as it is; a new schema gets NotifyAuto.
	NotifyKeep NotifyMode = ""
	// NotifyAuto notifies if a relay listens and none polls: writers pay nothing under load, or without a relay.
	NotifyAuto NotifyMode = "auto"
	// NotifyAlways notifies of every event.
	NotifyAlways NotifyMode = "always"
	// NotifyOff installs no trigger: relays find events by polling. It is for writers that use
	// PREPARE TRANSACTION, which PostgreSQL refuses after a NOTIFY.
	NotifyOff NotifyMode = "off"
)

// Validate returns an error unless m is one of the modes.
func (m NotifyMode) Validate() error {
	switch m {
	case NotifyKeep, NotifyAuto, NotifyAlways, NotifyOff:
		return nil
	}
	return fmt.Errorf("unknown notify mode %q: use auto, always or off", string(m))
}

// ErrNotMigrated is returned by [Check] if the tables are missing or old.
var ErrNotMigrated = pgschema.ErrNotMigrated

// ErrTooNew is returned if the schema was migrated by a newer notifyd.
var ErrTooNew = errors.New("schema is newer than this notifyd")

// Version is one version of the schema, applied or known.
type Version struct {
	Number    int
	Name      string
	AppliedAt time.Time // zero while it is not applied
}

// State is the state of the schema in a database.
type State struct {
	// Versions lists the versions that this notifyd knows, then applied ones that it does not know.
	Versions []Version
	// Current is the highest applied version; 0 without tables.
	Current int
	// Latest is the highest version that this notifyd knows.
	Latest int
	// Notify is the installed notify mode; NotifyOff without a trigger.
	Notify NotifyMode
	// Mode is how relays read the table; ModeQueue if the table is missing.
	Mode Mode
	// Becoming is the target mode of an unfinished change; "" without a change.
	Becoming Mode
	// Serialized reports whether writers are serialized: see [SerializeWriters].
	Serialized bool
	// Home is where the outbox belongs, and where it is; zero without tables.
	Home Home
}

type migration struct {
	name string
	sql  string
}

// migrations returns all versions in order; the first one is version 1.
//
// Nothing is released yet: until then there is one version, and a change edits its file in place.
// From the first release on, released versions are never edited: a change is a new entry, and a new
// file, which records itself in outbox_migrations under the same number and name. functions.sql and
// triggers.sql run with every migration, and always are the newest.
func migrations() []migration {
	return []migration{{name: "events and deliveries", sql: schemaSQL}}
}

// MigrateOptions configure [Migrate]; the zero value is valid.
type MigrateOptions struct {
	// Notify selects when the trigger notifies.
	Notify NotifyMode
	// Mode is the mode of new tables; empty is a queue. New tables are never visible in another mode, because a relay
	// that waits for tables would use that mode. Existing tables keep their mode: see [SetMode].
	Mode Mode
	// LockPatience is how long to try to lock the tables for a moment, while writers use them, and to
	// wait for another change of the schema; 0 is [DefaultLockPatience].
	LockPatience time.Duration
	// Waiting, if set, is called now and then with the sessions whose locks Migrate waits for.
	Waiting func(line string)
	// Progress, if set, is called with the names of missing tables that it recreates.
	Progress func(step string)
}

// MigratePool brings the tables of the schema public to the newest version, as [Migrate] does with its default options. It is
// what a program calls when it starts.
func MigratePool(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := Migrate(ctx, pool, DefaultSchema, MigrateOptions{})
	return err
}

// Migrate brings the schema to the newest version and installs the trigger. It returns the versions that it applied, none
// if the schema was up to date. db is a connection or a pool. Migrate runs in one transaction under an advisory lock, so
// several programs may call it at once. A lock that it does not get within 200 ms makes it roll back, let writers pass,
// and try again. It leaves a schema that is newer than this notifyd alone, and returns [ErrTooNew].
func Migrate(ctx context.Context, db DB, schema string, o MigrateOptions) (applied []Version, err error) {
	return migrate(ctx, db, schema, migrations(), o)
}

// migrate is [Migrate] for a notifyd that knows these versions.
func migrate(ctx context.Context, db DB, schema string, known []migration, o MigrateOptions) (applied []Version, err error) {
	err = errors.Join(pgschema.Validate(schema), o.Notify.Validate(), cmp.Or(o.Mode, ModeQueue).Validate())
	if err != nil {
		return nil, err
	}

	c := &change{conn: db, schema: schema, patience: o.LockPatience, waiting: o.Waiting, progress: o.Progress}
	err = c.again(ctx, func() (err error) {
		applied, err = c.migrate(ctx, known, &o)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("migrate schema %q: %w", schema, err)
	}

	return applied, nil
}

// migrate returns errBusy if another change of the schema is in progress. It does not wait for
// that in its transaction: see [change.lockSchema].
func (c *change) migrate(ctx context.Context, known []migration, o *MigrateOptions) (applied []Version, err error) {
	schema := c.schema
	err = c.begin(ctx, aloneLock, func(tx pgx.Tx) error {
		var got bool
		err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(`+schemaKey+`)`, lockSpace, schema).Scan(&got)
		if err != nil {
			return err
		}
		if !got {
			return errBusy
		}

		state, err := readState(ctx, tx, schema, known)
		if err != nil {
			return err
		}
		if state.Current > state.Latest {
			return tooNew(schema, state)
		}

		applied = state.Versions[state.Current:]

		missing, err := c.missing(ctx, tx, known[:state.Current])
		if err != nil {
			return err
		}

		statements := script(schema, known[state.Current:], o.Notify)
		switch { // all versions may run again
		case slices.Contains(missing, "outbox_events"):
			statements = script(schema, known, cmp.Or(o.Notify, NotifyAuto)) + sqlSkipIDs // the table had the trigger
		case len(missing) > 0:
			statements = script(schema, known, o.Notify)
		}

		if len(missing) > 0 {
			c.say("recreating missing tables: %s", strings.Join(missing, ", "))
		}

		if state.Current == 0 && o.Mode == ModeStream {
			statements += asStream(0, nil)
		}

		// Even IF NOT EXISTS needs a privilege on the database, which a role that may only use one
		// schema may lack.
		var exists bool
		err = tx.QueryRow(ctx, `SELECT to_regnamespace($1) IS NOT NULL`, pgx.Identifier{schema}.Sanitize()).Scan(&exists)
		if err != nil {
			return fmt.Errorf("find the schema: %w", err)
		}
		if !exists {
			statements = createSchema(schema) + statements
		}

		partitioned, err := pgschema.Partitioned(ctx, tx, schema)
		if err != nil {
			return err
		}
		if partitioned {
			statements += partitionsSQL
		}

		_, err = tx.Exec(ctx, statements, pgx.QueryExecModeSimpleProtocol)
		return err
	})

	return applied, err
}

// tablesOf finds the tables in the SQL of a version.
var tablesOf = regexp.MustCompile(`CREATE (?:UNLOGGED )?TABLE IF NOT EXISTS (\w+)`)

// missing returns the tables of applied versions that somebody has dropped.
func (c *change) missing(ctx context.Context, tx pgx.Tx, applied []migration) (names []string, err error) {
	var all []string
	for _, m := range applied {
		for _, found := range tablesOf.FindAllStringSubmatch(m.sql, -1) {
			all = append(all, found[1])
		}
	}

	rows, err := tx.Query(ctx, `SELECT name FROM unnest($1::text[]) AS name
		WHERE to_regclass(quote_ident($2) || '.' || name) IS NULL ORDER BY name`, all, c.schema)
	if err == nil {
		names, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		return nil, fmt.Errorf("look for missing tables: %w", err)
	}

	return names, nil
}

// sqlSkipIDs moves the sequence of a new outbox_events behind the ids in other tables. Otherwise a stored delivery would
// find a new event under its id, and a position would have passed new events.
const sqlSkipIDs = `SELECT pg_catalog.setval(pg_catalog.pg_get_serial_sequence('outbox_events', 'id'), last)
FROM (SELECT greatest((SELECT max(event_id) FROM outbox_deliveries), (SELECT max(head) FROM outbox_positions),
	(SELECT max(event_id) FROM outbox_audit), (SELECT max(origin_head) FROM outbox_mode)) AS last) AS used WHERE last > 0;
`

// Script returns the statements that [Migrate] would run against an empty database, for users who
// apply SQL with a tool of their own.
func Script(schema string, notify NotifyMode) (string, error) {
	if err := errors.Join(pgschema.Validate(schema), notify.Validate()); err != nil {
		return "", err
	}

	create := ""
	if schema != DefaultSchema {
		create = createSchema(schema)
	}

	// A script that had to wait for a lock would make all writers wait as well.
	begin := fmt.Sprintf("BEGIN;\n-- If a lock is not granted in time, run the script again.\nSET LOCAL lock_timeout = %d;\n",
		aloneLock.Milliseconds())

	return begin + create + script(schema, migrations(), notify) + "COMMIT;\n", nil
}

func createSchema(schema string) string {
	return "SET LOCAL client_min_messages = warning;\nCREATE SCHEMA IF NOT EXISTS " + pgx.Identifier{schema}.Sanitize() + ";\n"
}

// script returns the statements that apply the missing versions.
func script(schema string, missing []migration, notify NotifyMode) string {
	var b strings.Builder
	ident := pgx.Identifier{schema}.Sanitize()

	// IF NOT EXISTS reports skipped statements, which is noise here.
	fmt.Fprintf(&b, "SET LOCAL client_min_messages = warning;\nSET LOCAL search_path = %s;\n", ident)
	fmt.Fprintf(&b, "SET LOCAL notifyd.notify = '%s';\n", notify)

	for _, m := range missing {
		b.WriteString(m.sql)
	}

	b.WriteString(functionsSQL)
	b.WriteString(triggersSQL)
	return b.String()
}

// ReadState returns the state of the schema. A database without it is not an error: Current is 0.
func ReadState(ctx context.Context, db DB, schema string) (State, error) {
	var state State
	err := pgx.BeginTxFunc(ctx, db, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
		state, err = readState(ctx, tx, schema, migrations())
		return err
	})
	return state, err
}

// Check returns nil if the schema is exactly the one that this notifyd needs. Otherwise it returns
// [ErrNotMigrated] or [ErrTooNew], with the remedy.
func Check(ctx context.Context, db DB, schema string) error {
	state, err := ReadState(ctx, db, schema)
	switch {
	case err != nil:
		return err
	case state.Current > state.Latest:
		return tooNew(schema, state)
	case state.Current == 0:
		return pgschema.MissingTables(ctx, db, schema)
	case state.Current < state.Latest:
		return fmt.Errorf("schema %q is at version %d, this notifyd needs %d: run `notifyd migrate`: %w",
			schema, state.Current, state.Latest, ErrNotMigrated)
	}

	return nil
}

func tooNew(schema string, s State) error {
	return fmt.Errorf("schema %q is at version %d, this notifyd knows %d: upgrade notifyd: %w",
		schema, s.Current, s.Latest, ErrTooNew)
}

func readState(ctx context.Context, tx pgx.Tx, schema string, known []migration) (State, error) {
	state := State{Notify: NotifyOff, Mode: ModeQueue}
	for i, m := range known {
		state.Versions = append(state.Versions, Version{Number: i + 1, Name: m.name})
	}

	state.Latest = len(state.Versions)

	table := pgx.Identifier{schema, "outbox_migrations"}.Sanitize()
	var exists bool
	if err := tx.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, table).Scan(&exists); err != nil {
		return state, fmt.Errorf("find %s: %w", table, err)
	}
	if !exists {
		return state, nil
	}

	rows, err := tx.Query(ctx, `SELECT version, name, applied_at FROM `+table+` ORDER BY version`)
	if err != nil {
		return state, fmt.Errorf("read %s: %w", table, err)
	}

	applied, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Version])
	if err != nil {
		return state, fmt.Errorf("read %s: %w", table, err)
	}

	for _, v := range applied {
		state.Current = v.Number
		if v.Number <= state.Latest {
			state.Versions[v.Number-1] = v
		} else {
			state.Versions = append(state.Versions, v)
		}
	}

	modeTable := pgx.Identifier{schema, "outbox_mode"}.Sanitize()
	if err := tx.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, modeTable).Scan(&exists); err != nil {
		return state, fmt.Errorf("find outbox_mode: %w", err)
	}
	if !exists {
		return state, fmt.Errorf("outbox_mode of schema %q is missing: restore its row from a backup: %w", schema, ErrNotMigrated)
	}

	row, err := pgschema.ReadMode(ctx, tx, schema)
	if err != nil {
		return state, err
	}

	state.Mode = Mode(row.Mode)
	state.Becoming = Mode(row.Becoming)
	state.Home = Home{Is: Place(row.Home), Here: Place(row.Here)}

	state.Serialized, err = serialized(ctx, tx, schema)
	if err != nil {
		return state, err
	}

	return state, readNotifyMode(ctx, tx, schema, &state.Notify)
}

// readNotifyMode reads the installed mode. It leaves *notify alone if the trigger is missing.
func readNotifyMode(ctx context.Context, tx pgx.Tx, schema string, notify *NotifyMode) error {
	// The name of the function is the mode: outbox_notify_auto, outbox_notify_always.
	err := tx.QueryRow(ctx, `
		SELECT substring(p.proname FROM '^outbox_notify_(.*)$')
		FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
		WHERE t.tgrelid = to_regclass($1) AND t.tgname = 'outbox_events_notify' AND t.tgenabled <> 'D'`,
		pgx.Identifier{schema, "outbox_events"}.Sanitize()).Scan(notify)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("read the notify mode: %w", err)
	}

	return nil
}
