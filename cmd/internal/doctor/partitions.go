package doctor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
)

const migrateDaily = "notifyd migrate --partitions daily"

// checkPartitions checks whether the table fits the configuration, and whether its
// partitions are maintained.
func checkPartitions(ctx context.Context, e *exam) (string, []Finding, error) {
	partitioned, err := pgschema.Partitioned(ctx, e.conn, e.Schema)
	if err != nil {
		return "", nil, err
	}

	if !partitioned {
		return e.plainTable(ctx)
	}

	if e.Daily != nil && !*e.Daily {
		return "", []Finding{found(Warning, "retention: {partitions: daily}, for one relay at least",
			"outbox_events is partitioned and retention.partitions is none: no relay creates or drops partitions, and "+
				"events are deleted one by one.")}, nil
	}

	missing, err := e.mayNot(ctx)
	if err != nil {
		return "", nil, err
	}

	if missing != "" {
		return "", []Finding{found(Error, "run the output of notifyd migrate --print-grants as the owner of the tables",
			"The role may not call %s, so its relay cannot maintain partitions.", missing)}, nil
	}

	type facts struct {
		N        int
		Tomorrow bool
	}
	f, err := row[facts](ctx, e.conn, `SELECT count(*)::int,
		coalesce(max(day) > (clock_timestamp() AT TIME ZONE 'UTC')::date, false) FROM `+e.table("outbox_partitions")+`()`)
	if err != nil {
		return "", nil, err
	}

	var away string
	if err := e.conn.QueryRow(ctx, `SELECT `+e.table("outbox_away")+`()::text`).Scan(&away); err != nil {
		return "", nil, err
	}

	if away != "{}" {
		return "", []Finding{found(Warning, "ATTACH PARTITION, or, where its events are gone for good, UPDATE "+
			"outbox_mode SET dropped = dropped + outbox_away()",
			"The ids %s lie in no partition of outbox_events: it was detached or dropped. A stream waits for the events in it.", away)}, nil
	}

	if !f.Tomorrow {
		return "", []Finding{found(Warning, "notifyd run, with retention.partitions: daily",
			"There is no partition for tomorrow, so no relay creates any: events still go into the last one, and days "+
				"are not kept apart.")}, nil
	}

	return fmt.Sprintf("outbox_events has %d partitions, and one for tomorrow.", f.N), nil, nil
}

// plainTable is checkPartitions for a table that is not partitioned.
func (e *exam) plainTable(ctx context.Context) (string, []Finding, error) {
	var begun bool
	err := e.conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_constraint
		WHERE conrelid = to_regclass($1) AND conname = 'outbox_events_bound')`, e.table("outbox_events")).Scan(&begun)
	switch {
	case err != nil:
		return "", nil, err
	case begun:
		return "", []Finding{found(Warning, migrateDaily, "outbox_events is half-way to being partitioned: notifyd "+
			"migrate was interrupted.")}, nil
	case e.Daily != nil && *e.Daily:
		return "", []Finding{found(Warning, migrateDaily, "retention.partitions is daily and outbox_events is a plain "+
			"table: events are deleted one by one.")}, nil
	}

	return "outbox_events is a plain table.", nil, nil
}

// mayNot returns the first function for partitions that the role may not call, or
// that is missing.
func (e *exam) mayNot(ctx context.Context) (missing string, err error) {
	for _, name := range pgschema.PartitionFunctions() {
		qualified := pgx.Identifier{e.Schema}.Sanitize() + "." + name
		query := `SELECT coalesce(has_function_privilege(to_regprocedure($1), 'EXECUTE'), false)`

		var may bool
		if err := e.conn.QueryRow(ctx, query, qualified).Scan(&may); err != nil {
			return "", err
		}

		if !may {
			return name, nil
		}
	}

	return "", nil
}
