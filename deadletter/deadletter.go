// Package deadletter reads dead letters and deals with them: deliveries that were given up, because
// their event can never be delivered or because its attempts are used up.
//
// A [Store] lists dead letters, groups them by their errors, and shows everything about one event.
// It replays them: they are delivered again, under a new id, and a [Watch] says what became of them.
// It discards them, and it edits the payload of an event that no destination accepts as it is. Every
// change is recorded in outbox_audit in the same transaction. Several people may use it at once,
// while relays run: a letter that one of them has dealt with does not count for the others.
//
// `notifyd dlq` is this package as a command.
package deadletter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/events"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// ErrNotFound is wrapped by the error about an event that does not exist.
var ErrNotFound = errors.New("there is no such event")

// ErrNotDead is wrapped by the error about an event that has no dead letter, or that is on its way
// to another destination.
var ErrNotDead = errors.New("not a dead letter")

// ErrInvalid is wrapped by errors about invalid arguments.
var ErrInvalid = errors.New("invalid argument")

// DB is the database of a [Store]: *pgxpool.Pool, *pgx.Conn.
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// Config configures a [Store]. The zero value is for the schema "public" and a relay that keeps
// delivered events.
type Config struct {
	// Schema holds the tables; empty means "public".
	Schema string
	// DeleteEvents deletes an event when its last dead letter is discarded, as
	// relays do that keep no delivered events (retention.keep: 0). Others mark
	// it done, and delete it when it is old enough. An event of a stream that a
	// position has not passed yet is never deleted, and none is marked.
	DeleteEvents bool
}

// Store reads dead letters and deals with them. It is as safe for concurrent use as its database,
// and has nothing to close.
type Store struct {
	db     DB
	cfg    Config
	tables *strings.Replacer
	events *events.Store
}

// New returns a store on db. It does not connect. The database must have the
// newest schema (see outboxsql.Check); the caller closes it.
func New(db DB, cfg Config) (*Store, error) {
	if cfg.Schema == "" {
		cfg.Schema = outboxsql.DefaultSchema
	}
	if err := outboxsql.ValidateSchema(cfg.Schema); err != nil {
		return nil, fmt.Errorf("dead letters: %w: %w", ErrInvalid, err)
	}
	all, err := events.New(db, cfg.Schema)
	if err != nil {
		return nil, fmt.Errorf("dead letters: %w", err)
	}
	name := func(table string) string { return pgx.Identifier{cfg.Schema, table}.Sanitize() }
	return &Store{db: db, cfg: cfg, events: all, tables: strings.NewReplacer(
		"{deliveries}", name("outbox_deliveries"), "{events}", name("outbox_events"), "{audit}", name("outbox_audit"),
		"{mode}", name("outbox_mode"), "{positions}", name("outbox_positions"), "{replays}", name("outbox_replays"),
	)}, nil
}

// sql inserts the names of the tables into a statement.
func (s *Store) sql(text string) string { return s.tables.Replace(text) }

// lockTimeout bounds waiting for a row that another session has locked. Sessions hold such locks
// for one transaction, which takes milliseconds.
const lockTimeout = 30 * time.Second

// read runs f in a transaction with one snapshot, also on a standby.
func (s *Store) read(ctx context.Context, what string, f inTx) error {
	return s.tx(ctx, what, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f)
}

// write runs f in a transaction that may write. READ COMMITTED: a row that another session has
// changed during the wait for its lock is checked again, and left alone.
func (s *Store) write(ctx context.Context, what string, f inTx) error {
	return s.tx(ctx, what, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, f)
}

// inTx is the body of a transaction. now is its time by the database's clock.
type inTx func(tx pgx.Tx, now time.Time) error

// commitTimeout bounds a COMMIT, which does not end with the caller's context.
const commitTimeout = 30 * time.Second

var errNoCommit = errors.New("the database does not answer COMMIT")

func (s *Store) tx(ctx context.Context, what string, options pgx.TxOptions, f inTx) error {
	if err := s.run(ctx, options, f); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// run is [pgx.BeginTxFunc], but the end of ctx does not cut the COMMIT off: the caller could not
// tell then whether it took place.
func (s *Store) run(ctx context.Context, options pgx.TxOptions, f inTx) error {
	tx, err := s.db.BeginTx(ctx, options)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // does nothing after COMMIT; before it, a failed rollback is undone with the session
	var now time.Time
	err = tx.QueryRow(ctx, `SELECT clock_timestamp() FROM set_config('lock_timeout', $1, true)`,
		fmt.Sprintf("%dms", lockTimeout.Milliseconds())).Scan(&now)
	if err != nil {
		return err
	}
	if err := f(tx, now); err != nil {
		return err
	}
	lasting, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), commitTimeout, errNoCommit)
	defer cancel()
	return tx.Commit(lasting)
}

// Ref names a delivery.
type Ref struct {
	EventID     int64  `json:"event_id"`
	Destination string `json:"destination"`
}

// Letter is a dead letter.
type Letter struct {
	Ref
	Type string `json:"event_type"`
	// Fingerprint is equal for errors that differ only in numbers, ids, addresses and quoted
	// values: twelve hexadecimal digits.
	Fingerprint string `json:"fingerprint"`
	// DiedAt is when the delivery was given up.
	DiedAt time.Time `json:"died_at"`
	// Attempts counts the failures since it was written or last replayed.
	Attempts int `json:"attempts"`
	// Replays counts how often it was replayed before it died again.
	Replays int `json:"replays"`
	// Class says whose fault the last failure was: event, destination or ours.
	Class string `json:"error_class"`
	// Error is the text of the last failure, shortened.
	Error string `json:"error"`
}
