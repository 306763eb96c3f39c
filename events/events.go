// Package events says what became of events: for each destination whether the event is delivered,
// dead, waits and for what, or is not for that destination.
//
// Nothing of this is stored as such. A [Store] derives it, in one snapshot, from outbox_events,
// outbox_deliveries and outbox_audit, and in a stream from outbox_positions and outbox_routes. It
// claims only what follows from these tables: Delivered means that the destination has acknowledged
// the event, and nothing else. A queue does not store which destinations an event was routed to, nor
// whether each has received it or passed it over, so of an event that is done it says only that
// nothing is left to do.
//
// `notifyd events` is this package as a command; the web console and package deadletter show the
// same.
package events

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// ErrNotFound is wrapped by the error about an event of which no table knows anything.
var ErrNotFound = errors.New("there is no such event")

// ErrInvalid is wrapped by errors about invalid arguments.
var ErrInvalid = errors.New("invalid argument")

// ErrChanging is wrapped by the error about a table that is becoming a queue: until that has ended,
// its rows do not say what is delivered.
var ErrChanging = errors.New("the mode of the table is being changed: let `notifyd migrate --mode` finish, or repeat it")

// DB is the database of a [Store]: *pgxpool.Pool, *pgx.Conn.
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// Store reads events. It is as safe for concurrent use as its database, and has nothing to close.
type Store struct {
	db     DB
	schema string
	tables *strings.Replacer
}

// New returns a store on db for the tables in schema; empty means "public". It does not connect.
// The database must have the newest schema (see outboxsql.Check); the caller closes it.
func New(db DB, schema string) (*Store, error) {
	if schema == "" {
		schema = outboxsql.DefaultSchema
	}
	if err := outboxsql.ValidateSchema(schema); err != nil {
		return nil, fmt.Errorf("events: %w: %w", ErrInvalid, err)
	}
	name := func(table string) string { return pgx.Identifier{schema, table}.Sanitize() }
	return &Store{db: db, schema: schema, tables: strings.NewReplacer(
		"{deliveries}", name("outbox_deliveries"), "{events}", name("outbox_events"), "{audit}", name("outbox_audit"),
		"{mode}", name("outbox_mode"), "{positions}", name("outbox_positions"), "{routes}", name("outbox_routes"),
	)}, nil
}

// sql inserts the names of the tables into a statement.
func (s *Store) sql(text string) string { return s.tables.Replace(text) }

// statementTimeout bounds each statement: even one that reads by index may take long behind a long
// run of dead index entries.
const statementTimeout = 10 * time.Second

// read runs f in a transaction with one snapshot, also on a standby.
func (s *Store) read(ctx context.Context, what string, f func(tx pgx.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err == nil {
		defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // nothing was written
		// Each statement has one good plan, by index, whatever stale statistics say. A limit of the
		// caller's stays.
		_, err = tx.Exec(ctx, `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true),
			CASE current_setting('statement_timeout') WHEN '0' THEN set_config('statement_timeout', $1, true) END`,
			fmt.Sprintf("%dms", statementTimeout.Milliseconds()))
	}
	if err == nil {
		err = f(tx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Show returns what is known of an event, without its headers and payload, and an error that wraps
// [ErrNotFound] if that is nothing.
func (s *Store) Show(ctx context.Context, id int64) (e Event, err error) {
	err = s.read(ctx, fmt.Sprintf("show event %d", id), func(tx pgx.Tx) error {
		e, err = s.Read(ctx, tx, id)
		return err
	})
	return e, err
}

// ShowWhole is Show with headers and payload.
func (s *Store) ShowWhole(ctx context.Context, id int64) (e Event, err error) {
	err = s.read(ctx, fmt.Sprintf("show event %d", id), func(tx pgx.Tx) error {
		e, err = s.ReadWhole(ctx, tx, id)
		return err
	})
	return e, err
}

// Read is Show in a transaction of the caller, which must have one snapshot (REPEATABLE READ).
func (s *Store) Read(ctx context.Context, tx pgx.Tx, id int64) (Event, error) {
	t, err := s.tablesNow(ctx, tx)
	if err != nil {
		return Event{}, err
	}
	found, err := s.byID(ctx, tx, []int64{id})
	if err != nil {
		return Event{}, err
	}
	if len(found) == 0 {
		found = []raw{{Event: Event{ID: id, Gone: true}}}
	}
	all, err := s.outcomes(ctx, tx, t, found)
	if err != nil {
		return Event{}, err
	}
	if e := all[0]; !e.Gone || e.known {
		return e, nil
	}
	return Event{}, ErrNotFound
}

// ReadWhole is Read with headers and payload.
func (s *Store) ReadWhole(ctx context.Context, tx pgx.Tx, id int64) (Event, error) {
	e, err := s.Read(ctx, tx, id)
	if err != nil || e.Gone {
		return e, err
	}
	// As text, because they are shown byte for byte.
	err = tx.QueryRow(ctx, s.sql(`SELECT headers::text, payload::text, payload_bytes, coalesce(content_type, '') FROM {events} WHERE id = $1`), id).
		Scan((*[]byte)(&e.Headers), (*[]byte)(&e.Payload), &e.PayloadBytes, &e.ContentType)
	return e, err
}
