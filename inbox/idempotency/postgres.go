package idempotency

import (
	"context"
	"database/sql"
	_ "embed" // postgres.sql
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
)

//go:embed postgres.sql
var postgresSQL string

// DefaultSchema is the schema of the table of [Postgres] if no schema is named.
const DefaultSchema = "public"

// maxNameBytes is PostgreSQL's limit for the name of a schema.
const maxNameBytes = 63

// PostgresPool is a *pgxpool.Pool. A single connection or a transaction does not suffice, because requests run concurrently and
// each step must be committed. R and W are inferred at the call; they keep pgx out of this package's imports.
type PostgresPool[R PostgresResult, W PostgresRow] interface {
	Exec(ctx context.Context, query string, args ...any) (R, error)
	QueryRow(ctx context.Context, query string, args ...any) W
}

// PostgresResult is the result of a statement of pgx: pgconn.CommandTag.
type PostgresResult interface {
	RowsAffected() int64
}

// PostgresRow is a row of pgx: pgx.Row.
type PostgresRow interface {
	Scan(dest ...any) error
}

// Postgres is a [Store] in a table of PostgreSQL. Leases are measured by the clock of the database, so the clocks of the programs
// do not matter. Create it with [NewPostgres].
type Postgres struct {
	exec  func(ctx context.Context, query string, args ...any) (affected int64, err error)
	row   func(ctx context.Context, query string, args ...any) PostgresRow
	table string
}

// NewPostgres returns a store that uses pool, which the caller closes. schema is the schema of the table; "" is [DefaultSchema].
// NewPostgres does not connect.
//
// Give the store a separate pool: if handlers hold all connections of that pool, no lease is renewed, and the handlers are
// interrupted. A few connections suffice.
func NewPostgres[R PostgresResult, W PostgresRow](pool PostgresPool[R, W], schema string) (*Postgres, error) {
	if v := reflect.ValueOf(pool); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, errors.New("idempotency: a pool is required")
	}
	name, err := quote(schema)
	if err != nil {
		return nil, err
	}

	exec := func(ctx context.Context, query string, args ...any) (int64, error) {
		result, err := pool.Exec(ctx, query, args...)
		if err != nil {
			return 0, err
		}
		return result.RowsAffected(), nil
	}
	row := func(ctx context.Context, query string, args ...any) PostgresRow {
		return pool.QueryRow(ctx, query, args...)
	}
	return &Postgres{exec: exec, row: row, table: name + ".idempotency_keys"}, nil
}

// PostgresSchema returns the SQL that creates the table in a schema, "" for [DefaultSchema], for
// programs with migrations of their own. It has several statements, to be run in one
// transaction, and may be run again.
func PostgresSchema(schema string) (string, error) {
	name, err := quote(schema)
	if err != nil {
		return "", err
	}
	return strings.ReplaceAll(postgresSQL, ":schema", name), nil
}

// CreatePostgres creates the table in a schema, "" for [DefaultSchema], where it is
// missing. The schema itself must exist. Programs that start together may call it
// together.
func CreatePostgres[R PostgresResult, W PostgresRow](ctx context.Context, pool PostgresPool[R, W], schema string) error {
	query, err := PostgresSchema(schema)
	if err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, query); err != nil {
		return fmt.Errorf("create the table of idempotency keys: %w", err)
	}
	return nil
}

func quote(schema string) (string, error) {
	if schema == "" {
		schema = DefaultSchema
	}
	if len(schema) > maxNameBytes || strings.ContainsRune(schema, 0) {
		return "", fmt.Errorf("schema name %.70q is invalid", schema)
	}
	return `"` + strings.ReplaceAll(schema, `"`, `""`) + `"`, nil
}

// Begin implements Store.
func (s *Postgres) Begin(ctx context.Context, c Claim, lease time.Duration) (Entry, error) {
	for {
		affected, err := s.exec(ctx, `INSERT INTO `+s.table+` AS t (key, token, fingerprint, expires_at)
			VALUES ($1::text, $2::text, $3::text, clock_timestamp() + $4::bigint * interval '1 microsecond')
			ON CONFLICT (key) DO UPDATE
			SET token = excluded.token, fingerprint = excluded.fingerprint, expires_at = excluded.expires_at, answer = NULL
			WHERE t.expires_at <= clock_timestamp() OR t.token = excluded.token AND t.answer IS NULL`,
			c.Key, c.Token, c.Fingerprint, lease.Microseconds())
		if err != nil {
			return Entry{}, explain(err)
		}
		if affected == 1 {
			return Entry{State: Taken}, nil
		}

		e := Entry{State: InProgress}
		err = s.row(ctx, `SELECT fingerprint, answer FROM `+s.table+`
			WHERE key = $1::text AND expires_at > clock_timestamp()`, c.Key).Scan(&e.Fingerprint, &e.Answer)
		if errors.Is(err, sql.ErrNoRows) {
			continue // the key was released, or has expired, between the two statements
		}
		if err != nil {
			return Entry{}, explain(err)
		}

		if e.Answer != nil {
			e.State = Done
		}
		return e, nil
	}
}

// Settle implements Store.
func (s *Postgres) Settle(ctx context.Context, c Claim, change Change) error {
	switch change.Action {
	case Finish:
		answer := change.Answer
		if answer == nil {
			answer = []byte{} // null means no answer
		}
		return s.change(ctx, `INSERT INTO `+s.table+` AS t (key, token, fingerprint, expires_at, answer)
			VALUES ($1::text, $2::text, $3::text, clock_timestamp() + $4::bigint * interval '1 microsecond', $5::bytea)
			ON CONFLICT (key) DO UPDATE SET expires_at = excluded.expires_at, answer = excluded.answer
			WHERE t.token = excluded.token`, c.Key, c.Token, c.Fingerprint, change.For.Microseconds(), answer)
	case Renew:
		// An expired key that no other claim has taken is renewed too: the clock of the
		// server may have been set ahead.
		return s.change(ctx, `UPDATE `+s.table+` SET expires_at = clock_timestamp() + $3::bigint * interval '1 microsecond'
			WHERE key = $1::text AND token = $2::text AND answer IS NULL`, c.Key, c.Token, change.For.Microseconds())
	default:
		return s.release(ctx, c)
	}
}

func (s *Postgres) change(ctx context.Context, query string, args ...any) error {
	affected, err := s.exec(ctx, query, args...)
	switch {
	case err != nil:
		return explain(err)
	case affected == 0:
		return ErrLost
	}
	return nil
}

// release of a free key is not an error: the answer to the first try was lost.
func (s *Postgres) release(ctx context.Context, c Claim) error {
	affected, err := s.exec(ctx, `DELETE FROM `+s.table+`
		WHERE key = $1::text AND token = $2::text AND answer IS NULL`, c.Key, c.Token)
	if err != nil {
		return explain(err)
	}
	if affected > 0 {
		return nil
	}

	var held bool
	err = s.row(ctx, `SELECT EXISTS (SELECT FROM `+s.table+`
		WHERE key = $1::text AND expires_at > clock_timestamp())`, c.Key).Scan(&held)
	switch {
	case err != nil:
		return explain(err)
	case held:
		return ErrLost
	}
	return nil
}

// explain marks errors that no retry cures: a statement that is not allowed or
// has no table (class 42), a missing database or schema, a role that may not log
// in.
func explain(err error) error {
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok && len(e.SQLState()) == 5 {
		switch e.SQLState()[:2] {
		case "42", "3D", "3F", "28":
			return fmt.Errorf("%w: create the table with idempotency.CreatePostgres "+
				"and grant SELECT, INSERT, UPDATE and DELETE on it: %w", ErrUnusable, err)
		}
	}
	return fmt.Errorf("the table of idempotency keys: %w", err)
}

// The defaults of [Postgres.Purge], and its limit.
const (
	DefaultPurgeBatch  = 1000
	DefaultPurgeBudget = 10 * time.Second

	maxPurgeBatch = 100_000
)

// Purge removes expired keys, in statements that each remove batch rows (1 to
// 100,000; 0 is [DefaultPurgeBatch]), until no expired keys are left (done is true) or
// budget is used up (0 is [DefaultPurgeBudget]). Call it about once an hour; the
// middleware decides how long a key is kept. Expired keys are free whether they
// are purged or not.
func (s *Postgres) Purge(ctx context.Context, batch int, budget time.Duration) (removed int64, done bool, err error) {
	if batch == 0 {
		batch = DefaultPurgeBatch
	}
	if budget == 0 {
		budget = DefaultPurgeBudget
	}

	if batch < 1 || batch > maxPurgeBatch || budget < 0 {
		return 0, false, fmt.Errorf("a batch of %d within %s: 1 to %d are allowed, and no negative budget",
			batch, budget, maxPurgeBatch)
	}

	for begin := time.Now(); ; {
		affected, err := s.exec(ctx, `DELETE FROM `+s.table+` WHERE ctid = ANY (ARRAY(SELECT ctid FROM `+s.table+`
			WHERE expires_at <= clock_timestamp() ORDER BY expires_at LIMIT $1::bigint FOR UPDATE SKIP LOCKED))`, int64(batch))
		if err != nil {
			return removed, false, explain(err)
		}
		removed += affected

		if affected < int64(batch) {
			return removed, true, nil
		}

		if time.Since(begin) >= budget {
			return removed, false, nil
		}
	}
}

var _ Store = (*Postgres)(nil)
