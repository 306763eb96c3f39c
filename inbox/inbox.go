// Package inbox lets a consumer handle a redelivered event once.
//
// Every broker and every webhook delivers an event again when an answer is lost,
// and so does notifyd. [Once] notes the event's id in a table of the consumer's
// own PostgreSQL, in the transaction that does the work: the note and the work
// are committed together or not at all, so that an event takes effect exactly
// once, however often and however concurrently it is delivered.
//
// That holds for the statements of the transaction. A rollback does not undo a mail or a
// request to another service: write an outbox event in the same transaction and let a
// relay send it.
//
// The package imports the standard library only.
package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Both are in one index entry, which PostgreSQL bounds at 2704 bytes.
const (
	maxConsumerBytes = 255
	maxEventIDBytes  = 1024
)

// undoWithin bounds the removal of a claim whose function has failed. The removal
// runs even if the caller's context is done.
const undoWithin = 5 * time.Second

// ErrInvalid is wrapped by every error about an argument that was refused before
// anything was sent to the database. The transaction stays usable.
var ErrInvalid = errors.New("invalid argument of the inbox")

// Consumer identifies a program that handles each event once. Two consumers in one
// database keep separate records.
type Consumer struct {
	// Name identifies the consumer: 1 to 255 bytes. It is stored with every event:
	// keep it from release to release.
	Name string
	// Schema holds the table; "" is [DefaultSchema].
	Schema string
}

// Result is the result of a statement of pgx: pgconn.CommandTag.
type Result interface {
	RowsAffected() int64
}

// Tx is a pgx transaction: pgx.Tx and *pgxpool.Tx fit, a pool or a bare
// connection does not, because the note of an event must be committed with the
// work. R is inferred at the call; it keeps pgx out of this package's imports.
// Rollback is never called.
type Tx[R Result] interface {
	Execer[R]
	Rollback(ctx context.Context) error
}

// SQLTx is a transaction of database/sql: *sql.Tx, and types that embed it. A *sql.DB or
// *sql.Conn does not fit. Rollback is never called.
type SQLTx interface {
	SQLExecer
	Rollback() error
}

// Once calls fn unless consumer has handled the event before, and reports whether it did.
// It begins, commits and rolls back nothing: the transaction is the caller's, and the
// event is handled when the caller has committed.
//
// eventID is the id that the event carries, as text: 1 to 1024 bytes of UTF-8 without zero
// bytes. It must be the same for every attempt: the header notifyd-id of a broker's
// message, webhook-id of a webhook, Event.DedupeID of a Go handler (docs/consumers.md has
// them all). Do not use the message id that a broker generates for each copy. A replayed
// dead letter has a new id, "42r1" for "42", and is handled again; pass "42" for both
// where no replay may repeat the work.
//
// # What the caller does
//
//	ran  err   meaning                                           do
//	true nil   fn has returned nil                               commit, then acknowledge
//	false nil  an earlier delivery was committed                 roll back or commit, then acknowledge
//	true err   fn has failed with err                            roll back, let it be delivered again
//	false err  fn was not called: an argument or the database    roll back, let it be delivered again
//
// When fn fails or panics, Once removes the note and nothing else: the caller rolls back
// the writes of fn. If the caller commits them all the same, the event is handled again at
// its next delivery, on top of these writes. To undo fn and continue, give Once a nested
// transaction (Begin of a pgx.Tx) and roll that back. If the note cannot be removed, err
// joins that error with the error of fn, and the transaction must be rolled back.
//
// fn must use the same transaction, must not end it, and must not leave a nested one open.
//
// # Concurrent deliveries
//
// While another transaction handles the same event, Once waits for that transaction to
// end: after a commit fn is not called, after a rollback it is. The index of the table
// decides, without an extra lock; lock_timeout and ctx bound the wait. Two transactions
// that each handle several events in different orders can deadlock (SQLSTATE 40P01, one of
// them fails and is delivered again): handle one event per transaction, or several in the
// order of their ids.
//
// With READ COMMITTED the second delivery is skipped. With REPEATABLE READ or SERIALIZABLE
// it fails with SQLSTATE 40001 if the first one was committed after its snapshot was
// taken: roll back and run the transaction again, as for any such failure. A READ ONLY
// transaction fails with 25006, one that has failed before with 25P02. Errors of the
// database are wrapped once, for errors.As.
func Once[R Result](ctx context.Context, tx Tx[R], consumer Consumer, eventID string, fn func(context.Context) error) (ran bool, err error) {
	return once(ctx, func(ctx context.Context, query string, args ...any) (int64, error) {
		result, err := tx.Exec(ctx, query, args...)
		if err != nil {
			return 0, err
		}
		return result.RowsAffected(), nil
	}, claim{consumer, eventID}, fn)
}

// OnceSQL is [Once] for transactions of database/sql, with any driver for
// PostgreSQL that knows $1 and RowsAffected.
func OnceSQL(ctx context.Context, tx SQLTx, consumer Consumer, eventID string, fn func(context.Context) error) (ran bool, err error) {
	return once(ctx, execSQL(tx), claim{consumer, eventID}, fn)
}

func execSQL(db SQLExecer) exec {
	return func(ctx context.Context, query string, args ...any) (int64, error) {
		result, err := db.ExecContext(ctx, query, args...)
		if err != nil {
			return 0, err
		}
		return result.RowsAffected()
	}
}

// exec runs a statement and returns how many rows it has changed.
type exec func(ctx context.Context, query string, args ...any) (int64, error)

// claim is an event in the record of a consumer.
type claim struct {
	consumer Consumer
	eventID  string
}

func once(ctx context.Context, run exec, c claim, fn func(context.Context) error) (ran bool, err error) {
	schema, err := c.check()
	if err != nil {
		return false, err
	}
	if fn == nil {
		return false, fmt.Errorf("%w: the function is nil", ErrInvalid)
	}

	// The casts let any driver and any protocol pass the arguments as text.
	n, err := run(ctx, `INSERT INTO `+schema+`.inbox_events (consumer, event_id) VALUES ($1::text, $2::text)
		ON CONFLICT (consumer, event_id) DO NOTHING`, c.consumer.Name, c.eventID)
	if err != nil {
		return false, explain(schema, err)
	}
	if n == 0 {
		return false, nil
	}

	handled := false
	// Deferred, so that the note is removed also when fn panics or ends its goroutine:
	// the caller might recover and commit.
	defer func() {
		if handled {
			return
		}
		if uerr := c.undo(ctx, run, schema); uerr != nil && err != nil {
			err = errors.Join(err, uerr)
		}
	}()

	if err := fn(ctx); err != nil {
		return true, err
	}

	handled = true
	return true, nil
}

// undo removes the note of an event. If an earlier statement has aborted the transaction,
// the note cannot be committed and needs no removal.
func (c claim) undo(ctx context.Context, run exec, schema string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWithin)
	defer cancel()

	_, err := run(ctx, `DELETE FROM `+schema+`.inbox_events WHERE consumer = $1::text AND event_id = $2::text`,
		c.consumer.Name, c.eventID)
	if err == nil || sqlState(err) == stateAborted || errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return fmt.Errorf("the note of the event could not be removed, roll back the transaction: %w", err)
}

// check returns the quoted name of the schema.
func (c claim) check() (schema string, err error) {
	schema, err = quote(c.consumer.Schema)
	return schema, errors.Join(
		err,
		checkName("consumer name", c.consumer.Name, maxConsumerBytes),
		checkName("event id", c.eventID, maxEventIDBytes),
	)
}

func checkName(what, s string, limit int) error {
	switch {
	case s == "":
		return fmt.Errorf("%w: the %s is empty", ErrInvalid, what)
	case len(s) > limit:
		return fmt.Errorf("%w: the %s %.20q... has %d bytes, at most %d are allowed", ErrInvalid, what, s, len(s), limit)
	}
	return checkText(what, s)
}

func checkText(what, s string) error {
	if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		return fmt.Errorf("%w: the %s %.40q is not text: it has a zero byte or is not UTF-8", ErrInvalid, what, s)
	}
	return nil
}

// The SQLSTATEs whose errors come with a cure.
const (
	stateAborted   = "25P02"
	stateReadOnly  = "25006"
	stateNoTable   = "42P01"
	stateForbidden = "42501"
)

// explain adds the cure to an error of the insert.
func explain(schema string, err error) error {
	table := schema + ".inbox_events"
	switch sqlState(err) {
	case stateAborted:
		return fmt.Errorf("note an event in %s: the transaction has failed before, roll it back: %w", table, err)
	case stateReadOnly:
		return fmt.Errorf("note an event in %s: the transaction or the server is read only, use a writable one: %w", table, err)
	case stateNoTable:
		return fmt.Errorf("note an event in %s: create the table with inbox.Create or the SQL of inbox.Schema: %w", table, err)
	case stateForbidden:
		return fmt.Errorf("note an event in %s: grant INSERT, SELECT and DELETE on the table to this role: %w", table, err)
	}
	return fmt.Errorf("note an event in %s: %w", table, err)
}

// sqlState returns the code of an error of PostgreSQL, or "". pgx and lib/pq
// both have the method.
func sqlState(err error) string {
	if coded, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return coded.SQLState()
	}
	return ""
}

var _ SQLTx = (*sql.Tx)(nil)
