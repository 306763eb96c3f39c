// Package pgschema reads the tables of notifyd. Relays, commands and package outboxsql share it.
package pgschema

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// ErrNotMigrated means that the tables are missing or old.
var ErrNotMigrated = errors.New("schema is not migrated")

// unnamed is the schema whose channel has no prefix.
const unnamed = "public"

// MaxNameBytes is the longest name of a schema: it leaves room for ".outbox_events" within PostgreSQL's 63 bytes
// for the name of a notification channel.
const MaxNameBytes = 63 - len(".outbox_events")

// Querier is what queries: a connection, a pool, or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Validate returns an error unless schema can hold the tables.
func Validate(schema string) error {
	switch {
	case schema == "":
		return errors.New("schema has no name: use public, or omit the setting")
	case len(schema) > MaxNameBytes:
		return fmt.Errorf("schema name %q has %d bytes, at most %d fit into a notification channel", schema, len(schema), MaxNameBytes)
	case strings.ContainsRune(schema, 0) || !utf8.ValidString(schema):
		return fmt.Errorf("schema name %q is not UTF-8 text without zero bytes", schema)
	}
	return nil
}

// Channel returns the notification channel of the schema.
func Channel(schema string) string {
	if schema == unnamed {
		return "outbox_events"
	}
	return schema + ".outbox_events"
}

// MissingTables returns an error that wraps [ErrNotMigrated] and says that the schema has no tables
// of notifyd. If other schemas of the database have them, the error names these: the usual cause is
// a setting that was forgotten, and a second outbox is seldom wanted.
func MissingTables(ctx context.Context, db Querier, schema string) error {
	others, err := Elsewhere(ctx, db, schema)
	switch {
	case err != nil:
		return err
	case len(others) == 0:
		return fmt.Errorf("schema %q has no tables of notifyd: run `notifyd migrate`, or call outboxsql.Migrate: %w",
			schema, ErrNotMigrated)
	}

	return fmt.Errorf("schema %q has no tables of notifyd, and schema %s has: "+
		"set database.schema or --schema, or run `notifyd migrate` for another outbox: %w",
		schema, strings.Join(others, ", "), ErrNotMigrated)
}

// maxElsewhere bounds the schemas that a message names.
const maxElsewhere = 5

// Elsewhere returns the quoted names of other schemas with tables of notifyd, at most five, in
// alphabetical order. It needs no privilege on them.
func Elsewhere(ctx context.Context, db Querier, schema string) ([]string, error) {
	rows, err := db.Query(ctx, `SELECT quote_ident(n.nspname) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
		WHERE c.relname = 'outbox_migrations' AND c.relkind = 'r' AND n.nspname <> $1 ORDER BY n.nspname LIMIT $2`, schema, maxElsewhere)
	if err != nil {
		return nil, fmt.Errorf("look for tables in other schemas: %w", err)
	}

	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for tables in other schemas: %w", err)
	}

	return names, nil
}

// Partitioned reports whether outbox_events of the schema is partitioned.
func Partitioned(ctx context.Context, db Querier, schema string) (yes bool, err error) {
	err = db.QueryRow(ctx, `SELECT coalesce((SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass($1)), false)`,
		pgx.Identifier{schema, "outbox_events"}.Sanitize()).Scan(&yes)
	if err != nil {
		return false, fmt.Errorf("check whether outbox_events is partitioned: %w", err)
	}
	return yes, nil
}

// PartitionsAhead is how many days get their partitions before they begin.
const PartitionsAhead = 3

// NoEncoding describes the problem of a database without an encoding.
const NoEncoding = "The database has the encoding SQL_ASCII: PostgreSQL does not know what its bytes mean, " +
	"and an event that was not written in UTF-8 leaves as it is, in JSON too."

// Literal quotes a text, for any setting of standard_conforming_strings.
func Literal(text string) string {
	return " E'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(text) + "'"
}
