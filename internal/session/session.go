// Package session has the settings that every session of notifyd needs, whatever the defaults of
// server, database and role are: they change what a statement means, or how a value is written. [Conn] has them
// also where a pooler gives each transaction another session.
package session

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Startup makes a session begin with text in UTF-8 and times in UTC. Poolers know these parameters,
// and keep them apart for each client. Others they refuse.
func Startup(cfg *pgx.ConnConfig) {
	wanted := map[string]string{"client_encoding": "UTF8", "datestyle": "ISO, MDY", "timezone": "UTC"}
	maps.DeleteFunc(cfg.RuntimeParams, func(name, _ string) bool {
		_, ours := wanted[strings.ToLower(name)]
		return ours
	})
	maps.Copy(cfg.RuntimeParams, wanted)
}

// Settings returns the settings, by name and value. Limits are not among them, nor is
// default_transaction_read_only: they refuse, and somebody may mean that.
func Settings() [][2]string {
	return [][2]string{
		// Between bytes and values.
		{"client_encoding", "UTF8"},
		{"DateStyle", "ISO, MDY"},
		{"IntervalStyle", "postgres"},
		{"TimeZone", "UTC"},
		{"bytea_output", "hex"},
		{"extra_float_digits", "1"},
		{"quote_all_identifiers", "off"},
		// Of what a statement means.
		{"standard_conforming_strings", "on"},
		{"array_nulls", "on"},
		{"transform_null_equals", "off"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_deferrable", "off"},
		{"session_replication_role", "origin"},
	}
}

// sqlSet sets what differs: an ordinary role may not set session_replication_role, not even to what it is. A
// setting that the server does not know is left out. A database without an encoding gives its bytes as they are:
// with UTF8 it would refuse to read all rows of a query because of one that is not.
const sqlSet = `SELECT bool_and(set_config(s.name, s.value, false) IS NOT NULL) FROM (
		SELECT name, CASE WHEN name = 'client_encoding' AND current_setting('server_encoding') = 'SQL_ASCII' THEN 'SQL_ASCII' ELSE value END
		FROM unnest($1::text[], $2::text[]) AS s(name, value)
	) AS s(name, value) WHERE current_setting(s.name, true) <> s.value`

// Set gives the settings to a session that lasts.
func Set(ctx context.Context, conn *pgx.Conn, settings [][2]string) error {
	names, values := split(settings)
	if _, err := conn.Exec(ctx, sqlSet, pgx.QueryExecModeExec, names, values); err != nil {
		return fmt.Errorf("prepare the session: %w", err)
	}
	return nil
}

// SetDirect is [Set] with [Settings] for a session that leads to the server itself. Through a pooler it sets
// nothing: another client may get the session next.
func SetDirect(ctx context.Context, conn *pgx.Conn) error {
	names, values := split(Settings())
	if _, err := conn.Exec(ctx, sqlSet+` AND pg_backend_pid() = $3::bigint`, pgx.QueryExecModeExec, names, values, int64(conn.PgConn().PID())); err != nil {
		return fmt.Errorf("prepare the session: %w", err)
	}
	return nil
}

func split(settings [][2]string) (names, values []string) {
	for _, s := range settings {
		names, values = append(names, s[0]), append(values, s[1])
	}
	return names, values
}
