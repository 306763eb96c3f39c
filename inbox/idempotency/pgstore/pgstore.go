// Package pgstore keeps idempotency keys in a table of PostgreSQL. Leases are
// measured by the clock of the database, so the clocks of the programs do not
// matter.
package pgstore

import (
	"context"
	_ "embed" // schema.sql
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/inbox/idempotency"
)

//go:embed schema.sql
var schemaSQL string

// DefaultSchema is the schema of the table if no schema is named.
const DefaultSchema = "public"

// maxNameBytes is PostgreSQL's limit for the name of a schema.
const maxNameBytes = 63

// DB runs statements: a *pgxpool.Pool. A single connection or a transaction does
// not suffice, because requests run concurrently and each step must be committed.
type DB interface {
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}

// Store is an idempotency.Store. Create it with [New].
type Store struct {
	db    DB
	table string
}

// New returns a store that uses db, which the caller closes. schema is the schema of the
// table; "" is [DefaultSchema]. New does not connect.
//
// Give the store a separate pool: if handlers hold all connections of that pool, no
// lease is renewed, and the handlers are interrupted. A few connections suffice.
func New(db DB, schema string) (*Store, error) {
	if db == nil {
		return nil, errors.New("pgstore: a pool is required")
	}
	name, err := quote(schema)
	if err != nil {
		return nil, err
	}
	return &Store{db: db, table: name + ".idempotency_keys"}, nil
}

// Schema returns the SQL that creates the table in a schema, "" for [DefaultSchema], for
// programs with migrations of their own. It has several statements, to be run in one
// transaction, and may be run again.
func Schema(schema string) (string, error) {
	name, err := quote(schema)
	if err != nil {
		return "", err
	}
	return strings.ReplaceAll(schemaSQL, ":schema", name), nil
}

// Create creates the table in a schema, "" for [DefaultSchema], where it is
// missing. The schema itself must exist. Programs that start together may call it
// together.
func Create(ctx context.Context, db DB, schema string) error {
	query, err := Schema(schema)
	if err != nil {
		return err
	}
	if _, err := db.Exec(ctx, query); err != nil {
		return fmt.Errorf("create the table of idempotency keys: %w", err)
	}
	return nil
}

func quote(schema string) (string, error) {
	if schema == "" {
		schema = DefaultSchema
	}
	if len(schema) > maxNameBytes || strings.ContainsRune(schema, 0) {
		return "", fmt.Errorf("pgstore: schema name %.70q is invalid", schema)
	}
	return pgx.Identifier{schema}.Sanitize(), nil
}

// Begin implements idempotency.Store.
func (s *Store) Begin(ctx context.Context, c idempotency.Claim, lease time.Duration) (idempotency.Entry, error) {
	for {
		tag, err := s.db.Exec(ctx, `INSERT INTO `+s.table+` AS t (key, token, fingerprint, expires_at)
			VALUES ($1::text, $2::text, $3::text, clock_timestamp() + $4::bigint * interval '1 microsecond')
			ON CONFLICT (key) DO UPDATE SET token = excluded.token, fingerprint = excluded.fingerprint, expires_at = excluded.expires_at, answer = NULL
			WHERE t.expires_at <= clock_timestamp() OR t.token = excluded.token AND t.answer IS NULL`,
			c.Key, c.Token, c.Fingerprint, lease.Microseconds())
		if err != nil {
			return idempotency.Entry{}, explain(err)
		}
		if tag.RowsAffected() == 1 {
			return idempotency.Entry{State: idempotency.Taken}, nil
		}
		e := idempotency.Entry{State: idempotency.InProgress}
		err = s.db.QueryRow(ctx, `SELECT fingerprint, answer FROM `+s.table+` WHERE key = $1::text AND expires_at > clock_timestamp()`, c.Key).
			Scan(&e.Fingerprint, &e.Answer)
		if errors.Is(err, pgx.ErrNoRows) {
			continue // the key was released, or has expired, between the two statements
		}
		if err != nil {
			return idempotency.Entry{}, explain(err)
		}
		if e.Answer != nil {
			e.State = idempotency.Done
		}
		return e, nil
	}
}

// Settle implements idempotency.Store.
func (s *Store) Settle(ctx context.Context, c idempotency.Claim, change idempotency.Change) error {
	switch change.Action {
	case idempotency.Finish:
		answer := change.Answer
		if answer == nil {
			answer = []byte{} // null means no answer
		}
		return s.change(ctx, `INSERT INTO `+s.table+` AS t (key, token, fingerprint, expires_at, answer)
			VALUES ($1::text, $2::text, $3::text, clock_timestamp() + $4::bigint * interval '1 microsecond', $5::bytea)
			ON CONFLICT (key) DO UPDATE SET expires_at = excluded.expires_at, answer = excluded.answer
			WHERE t.token = excluded.token`, c.Key, c.Token, c.Fingerprint, change.For.Microseconds(), answer)
	case idempotency.Renew:
		// An expired key that no other claim has taken is renewed too: the clock of the
		// server may have been set ahead.
		return s.change(ctx, `UPDATE `+s.table+` SET expires_at = clock_timestamp() + $3::bigint * interval '1 microsecond'
			WHERE key = $1::text AND token = $2::text AND answer IS NULL`, c.Key, c.Token, change.For.Microseconds())
	default:
		return s.release(ctx, c)
	}
}

func (s *Store) change(ctx context.Context, query string, args ...any) error {
	tag, err := s.db.Exec(ctx, query, args...)
	switch {
	case err != nil:
		return explain(err)
	case tag.RowsAffected() == 0:
		return idempotency.ErrLost
	}
	return nil
}

// release of a free key is not an error: the answer to the first try was lost.
func (s *Store) release(ctx context.Context, c idempotency.Claim) error {
	tag, err := s.db.Exec(ctx, `DELETE FROM `+s.table+` WHERE key = $1::text AND token = $2::text AND answer IS NULL`, c.Key, c.Token)
	if err != nil {
		return explain(err)
	}
	if tag.RowsAffected() > 0 {
		return nil
	}
	var held bool
	err = s.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM `+s.table+` WHERE key = $1::text AND expires_at > clock_timestamp())`, c.Key).Scan(&held)
	switch {
	case err != nil:
		return explain(err)
	case held:
		return idempotency.ErrLost
	}
	return nil
}

// explain marks errors that no retry cures: a statement that is not allowed or
// has no table (class 42), a missing database or schema, a role that may not log
// in.
func explain(err error) error {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && len(e.Code) == 5 {
		switch e.Code[:2] {
		case "42", "3D", "3F", "28":
			return fmt.Errorf("%w: create the table with pgstore.Create and grant SELECT, INSERT, UPDATE and DELETE on it: %w", idempotency.ErrUnusable, err)
		}
	}
	return fmt.Errorf("the table of idempotency keys: %w", err)
}

var _ idempotency.Store = (*Store)(nil)
