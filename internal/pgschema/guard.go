package pgschema

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// modeSpace is 'ntfx' in ASCII: the upper half of the mode guard. The lower half
// is the oid of outbox_mode, which stays the same when outbox_events is partitioned.
const modeSpace = 0x6e746678

// ModeGuard returns the key of an advisory lock as SQL. Every session that reads or marks events holds the lock in
// shared mode as long as it lives, so the mode cannot change meanwhile. The key is NULL without tables.
func ModeGuard(schema string) string {
	table := pgx.Identifier{schema, "outbox_mode"}.Sanitize()
	return fmt.Sprintf("(%d::bigint << 32 | to_regclass(%s)::oid::bigint)", modeSpace, Literal(table))
}

// GuardUsers returns the SQL of the process ids of sessions that hold the mode guard, or wait for it.
func GuardUsers(schema string) string {
	return `SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND (classid::bigint << 32 | objid::bigint) = ` + ModeGuard(schema)
}

// ModeRow is the row of outbox_mode.
type ModeRow struct {
	Mode string
	// Becoming is the target mode of an unfinished change; "" without a change.
	Becoming string
	// Home is the place whose relays deliver, empty for none, and Here the place of the tables.
	Home, Here string
}

// ReadMode returns the mode of a migrated schema.
func ReadMode(ctx context.Context, db Querier, schema string) (r ModeRow, err error) {
	place := pgx.Identifier{schema, "outbox_place"}.Sanitize()
	table := pgx.Identifier{schema, "outbox_mode"}.Sanitize()
	err = db.QueryRow(ctx, `SELECT mode, coalesce(becoming, ''), coalesce(home, ''), `+place+`(tableoid)
		FROM `+table+` WHERE one`).Scan(&r.Mode, &r.Becoming, &r.Home, &r.Here)
	if err != nil {
		return ModeRow{}, fmt.Errorf("read the mode: %w", err)
	}
	return r, nil
}

const (
	// NamedSessions is how many sessions are named in an error.
	NamedSessions = 5
	// queryBytes is how many characters are shown of the last query of a session.
	queryBytes = 60
)

// Sessions names the sessions whose process ids the query returns, longest first.
func Sessions(ctx context.Context, db Querier, pids string, args ...any) string {
	var who string
	var n int

	// Without pg_monitor PostgreSQL hides the time and the query of other roles' sessions.
	err := db.QueryRow(ctx, fmt.Sprintf(`SELECT coalesce(string_agg(format('pid %%s, user %%s, application %%L', pid,
		coalesce(usename, backend_type), application_name)
			|| CASE WHEN since IS NULL THEN '' ELSE format(', since %%s, query %%L',
				to_char(since AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"'),
				left(regexp_replace(query, '\s+', ' ', 'g'), %d)) END, '; ' ORDER BY since, pid)
			FILTER (WHERE n <= %d), 'no visible session'), count(*)
		FROM (SELECT pid, usename, backend_type, application_name, query, coalesce(xact_start, backend_start) AS since,
			row_number() OVER (ORDER BY coalesce(xact_start, backend_start), pid) AS n
			FROM pg_stat_activity WHERE pid <> pg_backend_pid()
				AND pid IN (%s)) AS s`, queryBytes, NamedSessions, pids), args...).Scan(&who, &n)
	if err != nil {
		return "unknown: " + err.Error()
	}
	if n > NamedSessions {
		who += fmt.Sprintf("; and %d more", n-NamedSessions)
	}

	return who
}
