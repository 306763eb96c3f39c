package doctor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// sqlSequences finds the ids that sequences give out, in tables that the role may read.
const sqlSequences = `SELECT t.relname::text, a.attname::text, s.oid::regclass::text, has_sequence_privilege(s.oid, 'USAGE, SELECT')
	FROM pg_class AS s
		JOIN pg_depend AS d ON d.classid = 'pg_class'::regclass AND d.objid = s.oid
			AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('i', 'a')
		JOIN pg_class AS t ON t.oid = d.refobjid
		JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum = d.refobjsubid
	WHERE s.relkind = 'S' AND t.relnamespace = to_regnamespace($1) AND starts_with(t.relname, 'outbox_')
		AND has_column_privilege(t.oid, a.attnum, 'SELECT') ORDER BY 1`

// checkIDs looks for sequences that will give out ids that are taken, as after a move of the tables without
// the state of their sequences. The events of a stream are for checkStream.
func checkIDs(ctx context.Context, e *exam) (string, []Finding, error) {
	type sequence struct {
		Table, Column, Name string
		Readable            bool
	}

	all, err := rows[sequence](ctx, e.conn, sqlSequences, pgx.Identifier{e.Schema}.Sanitize())
	if err != nil {
		return "", nil, err
	}

	var findings []Finding
	for _, s := range all {
		last := "SELECT coalesce(pg_sequence_last_value($1::text::regclass), 0)"
		switch isEvents := s.Table == "outbox_events"; {
		case isEvents && e.mode == outboxsql.ModeStream:
			continue
		case s.Readable:
		case isEvents:
			last = "SELECT " + e.table("outbox_last_id") + "() WHERE $1::text <> ''"
		default:
			continue
		}

		column := pgx.Identifier{s.Column}.Sanitize()

		// The rows come first: ids that are drawn in between do no harm.
		var highest, at, taken int64
		drawn := e.table(s.Table)
		if s.Table == "outbox_events" {
			drawn, err = drawnBy(ctx, e)
			if err != nil {
				return "", nil, err
			}
		}

		if err := e.conn.QueryRow(ctx, "SELECT coalesce(max("+column+"), 0) FROM "+drawn).Scan(&highest); err != nil {
			return "", nil, err
		}
		if err := e.conn.QueryRow(ctx, last, s.Name).Scan(&at); err != nil {
			return "", nil, err
		}

		if highest <= at {
			continue
		}

		firstTaken := "SELECT coalesce(min(" + column + "), $1) FROM " + e.table(s.Table) + " WHERE " + column + " > $1"
		if err := e.conn.QueryRow(ctx, firstTaken, at).Scan(&taken); err != nil {
			return "", nil, err
		}

		findings = append(findings, found(Error, "SELECT setval('"+s.Name+"', "+"(SELECT max("+column+") FROM "+drawn+"))",
			"The sequence of %s.%s is at %d, and the table has ids up to %d: inserts fail with a duplicate key "+
				"(23505) from the id %d on.", s.Table, s.Column, at, highest, taken))
	}

	return "Sequences are ahead of all ids.", findings, nil
}

// drawnBy returns outbox_events with a condition for the ids that its sequence may reach. Behind the last partition it draws
// none: new partitions begin behind the ids that are in use, and an id of a writer's own may stay in the default one.
func drawnBy(ctx context.Context, e *exam) (string, error) {
	events := e.table("outbox_events")
	partitioned, err := pgschema.Partitioned(ctx, e.conn, e.Schema)
	if err != nil || !partitioned {
		return events, err
	}
	var last int64
	err = e.conn.QueryRow(ctx, `SELECT coalesce(max(high) - 1, 9223372036854775807) FROM `+e.table("outbox_partitions")+`()`).Scan(&last)
	return fmt.Sprintf("%s WHERE id <= %d", events, last), err
}
