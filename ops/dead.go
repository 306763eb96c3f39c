package ops

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNotDead is wrapped by the error about an event that has no dead letter, or that is on its way
// to another destination.
var ErrNotDead = errors.New("not a dead letter")

// lockTimeout bounds waiting for a row that another session has locked. Sessions hold such locks
// for one transaction, which takes milliseconds.
const lockTimeout = 30 * time.Second

// read runs f in a transaction with one snapshot, also on a standby.
func (s *Client) read(ctx context.Context, what string, f inTx) error {
	return s.tx(ctx, what, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f)
}

// write runs f in a transaction that may write. READ COMMITTED: a row that another session has
// changed during the wait for its lock is checked again, and left alone.
func (s *Client) write(ctx context.Context, what string, f inTx) error {
	return s.tx(ctx, what, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, f)
}

// inTx is the body of a transaction. now is its time by the database's clock.
type inTx func(tx pgx.Tx, now time.Time) error

// commitTimeout bounds a COMMIT, which does not end with the caller's context.
const commitTimeout = 30 * time.Second

var errNoCommit = errors.New("the database does not answer COMMIT")

func (s *Client) tx(ctx context.Context, what string, options pgx.TxOptions, f inTx) error {
	if err := s.run(ctx, options, f); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// run is [pgx.BeginTxFunc], but the end of ctx does not cut the COMMIT off: the caller could not
// tell then whether it took place.
func (s *Client) run(ctx context.Context, options pgx.TxOptions, f inTx) error {
	tx, err := s.db.BeginTx(ctx, options)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // does nothing after COMMIT; before it, a failed rollback is undone with the session

	var now time.Time

	// Compiling a statement would take a hundred times as long as running it. Rows that a policy hides are an error.
	err = tx.QueryRow(ctx, `SELECT clock_timestamp()
		FROM set_config('lock_timeout', $1, true) AS timeout, set_config('jit', 'off', true) AS jit,
			set_config('row_security', 'off', true) AS hidden`,
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

// DeliveryRef names a delivery.
type DeliveryRef struct {
	EventID     int64  `json:"event_id"`
	Destination string `json:"destination"`
}

// DeadLetter is a dead letter.
type DeadLetter struct {
	DeliveryRef
	Type string `json:"event_type"`
	// Fingerprint is equal for errors that differ only in numbers, ids, addresses and quoted
	// values: twelve hexadecimal digits.
	Fingerprint string `json:"fingerprint"`
	// DiedAt is when the delivery became a dead letter.
	DiedAt time.Time `json:"died_at"`
	// Attempts counts the failures since it was written or last replayed.
	Attempts int `json:"attempts"`
	// Replays counts how often it was replayed before it died again.
	Replays int `json:"replays"`
	// Class is the party at fault for the last failure: event, destination or
	// relay.
	Class string `json:"error_class"`
	// Error is the text of the last failure, shortened.
	Error string `json:"error"`
}
