package pgschema

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// MostCounted is the highest count of [CountWaiting], of each kind.
const MostCounted = 10_000

// CountWaiting counts the waiting events of an outbox, whether it is a stream or a queue: events that no destination has tried
// yet, in a stream those above the lowest position, stored deliveries that are not dead, and dead letters.
func CountWaiting(ctx context.Context, db Querier, schema string, isStream bool) (events, deliveries, dead int64, err error) {
	table := func(name string) string { return pgx.Identifier{schema, name}.Sanitize() }
	fresh := `state = 'fresh'`
	if isStream {
		fresh = `id > (SELECT coalesce(min(head), (SELECT origin_head FROM ` + table("outbox_mode") + `))
			FROM ` + table("outbox_positions") + ` WHERE destination <> '')`
	}

	err = db.QueryRow(ctx, `SELECT
		(SELECT count(*) FROM (SELECT FROM `+table("outbox_events")+` WHERE `+fresh+` ORDER BY id LIMIT $1) AS e),
		(SELECT count(*) FROM (SELECT FROM `+table("outbox_deliveries")+` WHERE state <> 'dead' LIMIT $1) AS d),
		(SELECT count(*) FROM (SELECT FROM `+table("outbox_deliveries")+` WHERE state = 'dead' LIMIT $1) AS d)`,
		MostCounted+1).Scan(&events, &deliveries, &dead)
	if err != nil {
		return 0, 0, 0, fmt.Errorf("count what waits: %w", err)
	}

	return events, deliveries, dead, nil
}
