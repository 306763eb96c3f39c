package inbox

import (
	"context"
	"database/sql"
	_ "embed" // schema.sql
	"fmt"
	"strings"
)

//go:embed schema.sql
var schemaSQL string

// DefaultSchema is the schema of the table if no schema is named.
const DefaultSchema = "public"

// maxNameBytes is PostgreSQL's limit for the name of a schema, which it would
// truncate silently.
const maxNameBytes = 63

// Execer runs a statement: a pgx pool, connection or transaction. R is inferred
// at the call; it keeps pgx out of this package's imports.
type Execer[R Result] interface {
	Exec(ctx context.Context, query string, args ...any) (R, error)
}

// SQLExecer is [Execer] for database/sql: *sql.DB, *sql.Conn or *sql.Tx.
type SQLExecer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Schema returns the SQL that creates the table in a schema, "" for [DefaultSchema], for
// programs with migrations of their own. It has several statements, to be run in one
// transaction, and may be run again. The schema itself must exist. The error wraps
// [ErrInvalid].
func Schema(schema string) (string, error) {
	name, err := quote(schema)
	if err != nil {
		return "", err
	}
	return strings.ReplaceAll(schemaSQL, ":schema", name), nil
}

// Create creates the table in a schema, "" for [DefaultSchema], where it is
// missing. Programs that start together may call it together. The role needs the
// privilege CREATE on the schema, and later INSERT, SELECT and DELETE on the
// table. Behind a pooler that does not allow several statements in one query,
// run [Schema] with a migration tool.
func Create[R Result](ctx context.Context, db Execer[R], schema string) error {
	query, err := Schema(schema)
	if err != nil {
		return err
	}
	if _, err := db.Exec(ctx, query); err != nil {
		return fmt.Errorf("create the inbox table: %w", err)
	}
	return nil
}

// CreateSQL is [Create] for database/sql. The driver must take several
// statements in one query without arguments, as pgx and lib/pq do.
func CreateSQL(ctx context.Context, db SQLExecer, schema string) error {
	query, err := Schema(schema)
	if err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, query); err != nil {
		return fmt.Errorf("create the inbox table: %w", err)
	}
	return nil
}

// quote returns the quoted name of a schema.
func quote(schema string) (string, error) {
	if schema == "" {
		schema = DefaultSchema
	}
	if len(schema) > maxNameBytes {
		return "", fmt.Errorf("%w: schema %.20q... has %d bytes, at most %d are allowed", ErrInvalid, schema, len(schema), maxNameBytes)
	}
	if err := checkText("schema", schema); err != nil {
		return "", err
	}
	return `"` + strings.ReplaceAll(schema, `"`, `""`) + `"`, nil
}
