// Package session has the settings that every session of notifyd needs. The defaults of server, database and role may
// change the meaning of a statement, or the format of a value. [Conn] applies the settings also through a pooler that
// gives each transaction another session.
package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Startup makes a session begin with text in UTF-8 and times in UTC. Poolers know only these parameters: they track
// them for each client, and refuse others.
func Startup(cfg *pgx.ConnConfig) {
	wanted := map[string]string{"client_encoding": "UTF8", "datestyle": "ISO, MDY", "timezone": "UTC"}
	maps.DeleteFunc(cfg.RuntimeParams, func(name, _ string) bool {
		_, ours := wanted[strings.ToLower(name)]
		return ours
	})
	maps.Copy(cfg.RuntimeParams, wanted)
}

// Settings returns the settings for the tables of an outbox, by name and value. Limits and default_transaction_read_only
// are not included: they refuse statements, possibly on purpose.
func Settings() [][2]string {
	// PostgreSQL refuses a statement from which a policy would hide rows. A stream would pass hidden events.
	return append(Foreign(), [2]string{"row_security", "off"})
}

// Foreign returns the settings for tables of others, whose policies apply.
func Foreign() [][2]string {
	return [][2]string{
		// These settings change the format of values.
		{"client_encoding", "UTF8"},
		{"DateStyle", "ISO, MDY"},
		{"IntervalStyle", "postgres"},
		{"TimeZone", "UTC"},
		{"bytea_output", "hex"},
		{"extra_float_digits", "1"},
		{"quote_all_identifiers", "off"},
		// These settings change the meaning of statements.
		{"standard_conforming_strings", "on"},
		{"array_nulls", "on"},
		{"transform_null_equals", "off"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_deferrable", "off"},
		{"session_replication_role", "origin"},
	}
}

// sqlSet sets only settings with another value: an ordinary role may not set session_replication_role, even to its
// current value. Settings unknown to the server are omitted. A database without an encoding returns its bytes
// unchanged: with UTF8 one invalid row would fail the whole query. The search_path is still the default of role and database, and may
// lead to objects of others: each name has its schema.
const sqlSet = `SELECT pg_catalog.bool_and(pg_catalog.set_config(s.name, s.value, false) IS NOT NULL) FROM (
		SELECT name, CASE WHEN name OPERATOR(pg_catalog.=) 'client_encoding' AND pg_catalog.current_setting('server_encoding') OPERATOR(pg_catalog.=) 'SQL_ASCII'
			THEN 'SQL_ASCII' ELSE value END
		FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[])) AS s(name, value)
	) AS s(name, value) WHERE pg_catalog.current_setting(s.name, true) OPERATOR(pg_catalog.<>) s.value`

// Set applies the settings to a direct session.
func Set(ctx context.Context, conn *pgx.Conn, settings [][2]string) error {
	names, values := split(settings)
	if _, err := conn.Exec(ctx, sqlSet, pgx.QueryExecModeExec, names, values); err != nil {
		return fmt.Errorf("prepare the session: %w", err)
	}
	return nil
}

// SetDirect is [Set] with [Settings] for a direct session, whose statements then find no objects but those of PostgreSQL without a
// schema. Through a pooler it changes nothing: another client may get the session next.
func SetDirect(ctx context.Context, conn *pgx.Conn) error {
	return setDirect(ctx, conn, append(Settings(), searchNothing()))
}

// searchNothing returns the setting for statements that name the schema of each table.
func searchNothing() [2]string { return [2]string{"search_path", "pg_catalog, pg_temp"} }

// SetForeign applies the settings of [Foreign] to a direct session, and keeps its search_path.
func SetForeign(ctx context.Context, conn *pgx.Conn) error { return setDirect(ctx, conn, Foreign()) }

// RefuseHiddenDirect changes only how a direct session treats row level security, and its search_path, as [SetDirect] does.
func RefuseHiddenDirect(ctx context.Context, conn *pgx.Conn) error {
	return setDirect(ctx, conn, [][2]string{{"row_security", "off"}, searchNothing()})
}

func setDirect(ctx context.Context, conn *pgx.Conn, settings [][2]string) error {
	names, values := split(settings)
	_, err := conn.Exec(ctx, sqlSet+` AND pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) $3::pg_catalog.int8`,
		pgx.QueryExecModeExec, names, values, int64(conn.PgConn().PID()))
	if err != nil {
		return fmt.Errorf("prepare the session: %w", err)
	}
	return nil
}

// IsHidden reports whether PostgreSQL refused a statement because a policy would hide rows from it. The refusal has the
// code of a missing privilege and a translated text, so the place in the server decides.
func IsHidden(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Routine == "check_enable_rls"
}

// HiddenCure is the cure for a statement that [IsHidden] recognizes. PostgreSQL refuses the statement under any policy.
const HiddenCure = "row level security hides rows from the role: ALTER ROLE ... BYPASSRLS, " +
	"or use the role that owns the tables without FORCE ROW LEVEL SECURITY, " +
	"or disable row level security for the tables of notifyd"

func split(settings [][2]string) (names, values []string) {
	for _, s := range settings {
		names = append(names, s[0])
		values = append(values, s[1])
	}
	return names, values
}
