package postgres

import (
	_ "embed" // schema.sql
	"strings"
)

//go:embed schema.sql
var schemaSQL string

// Schema returns the SQL that creates the table of cfg, for programs with migrations of their own. The
// table may have further columns, if they have defaults.
func Schema(cfg Config) string {
	return strings.ReplaceAll(schemaSQL, ":table", cfg.WithDefaults().name())
}

// insertInto returns the statement that writes a batch.
func insertInto(table string) string {
	return `INSERT INTO ` + table + ` (source, dedupe_id, event_id, event_type, aggregate_type, aggregate_id,
	payload, payload_bytes, content_type, headers, created_at)
SELECT $1::text, e.dedupe_id, e.event_id, e.event_type, nullif(e.aggregate_type, ''), nullif(e.aggregate_id, ''),
	e.payload::json, e.payload_bytes, nullif(e.content_type, ''), e.headers::jsonb, e.created_at
FROM unnest($2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bytea[], $9::text[], $10::text[],
	$11::timestamptz[])
	WITH ORDINALITY AS e (dedupe_id, event_id, event_type, aggregate_type, aggregate_id,
		payload, payload_bytes, content_type, headers, created_at, n)
ORDER BY e.n
ON CONFLICT (source, dedupe_id) DO NOTHING`
}

// othersIn returns the query for those keys of a batch that another event has.
func othersIn(table string) string {
	return `SELECT r.dedupe_id FROM unnest($2::text[], $3::timestamptz[]) AS e (dedupe_id, created_at)
JOIN ` + table + ` AS r ON r.source = $1::text AND r.dedupe_id = e.dedupe_id
WHERE r.created_at <> e.created_at`
}
