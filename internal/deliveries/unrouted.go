package deliveries

import (
	"cmp"
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/session"
)

// SQLUnroutedTypes begins a statement with the types t of rows without a route, one of them NULL. It skips from type to
// type in the index, with two index descents for each.
const SQLUnroutedTypes = `WITH RECURSIVE t(type) AS (
	(SELECT event_type FROM outbox_deliveries WHERE state = 'unrouted' ORDER BY event_type LIMIT 1)
	UNION ALL
	SELECT (SELECT event_type FROM outbox_deliveries WHERE state = 'unrouted' AND event_type > t.type ORDER BY event_type LIMIT 1)
	FROM t WHERE t.type IS NOT NULL)
`

// SQLUnroutedPage begins a statement with a page of the rows without a route of some types ($1), after an event ($2).
// It reads an equal share of $3 for each type, and drops rows above the first unread one. It reads no other row. The
// page is full unless cut.id is NULL.
const SQLUnroutedPage = `WITH share AS (SELECT greatest($3::bigint / greatest(cardinality($1::text[]), 1), 1) AS n),
pages AS MATERIALIZED (SELECT w.* FROM share, unnest($1::text[]) AS t(type)
	CROSS JOIN LATERAL (SELECT event_id, destination, event_type FROM outbox_deliveries
		WHERE state = 'unrouted' AND event_type = t.type AND event_id > $2 ORDER BY event_id LIMIT share.n) AS w),
cut AS (SELECT min(last) AS id FROM (SELECT max(event_id) AS last FROM pages GROUP BY event_type
	HAVING count(*) = (SELECT n FROM share)) AS complete),
page AS MATERIALIZED (SELECT * FROM pages WHERE event_id <= coalesce((SELECT id FROM cut), 9223372036854775807))
`

// sqlReroute makes a page due, and counts the rows that it has locked and changed.
const sqlReroute = SQLUnroutedPage + `, mine AS MATERIALIZED (SELECT d.event_id, d.destination FROM page AS p
	JOIN outbox_deliveries AS d ON d.event_id = p.event_id AND d.destination = p.destination WHERE d.state = 'unrouted' FOR UPDATE OF d),
due AS (
	UPDATE outbox_deliveries AS d SET state = 'retry', available_at = clock_timestamp(), updated_at = clock_timestamp(),
		error_class = NULL, last_error = NULL
	FROM mine AS p WHERE d.event_id = p.event_id AND d.destination = p.destination
	RETURNING d.event_id)
SELECT coalesce(max(event_id), $2), (SELECT id FROM cut) IS NOT NULL, (SELECT count(*) FROM mine), (SELECT count(*) FROM due) FROM page`

// typesPage is how many types one statement reads: some ten milliseconds.
const typesPage = 1000

// sqlTypesPage reads up to $2 types of rows without a route, after a type. It skips like SQLUnroutedTypes.
const sqlTypesPage = `WITH RECURSIVE t(type, n) AS (
	(SELECT event_type, 1 FROM outbox_deliveries WHERE state = 'unrouted' AND event_type > $1 ORDER BY event_type LIMIT 1)
	UNION ALL
	SELECT (SELECT event_type FROM outbox_deliveries WHERE state = 'unrouted' AND event_type > t.type ORDER BY event_type LIMIT 1), n + 1
	FROM t WHERE t.type IS NOT NULL AND n < $2)
SELECT type FROM t WHERE type IS NOT NULL`

// UnroutedTypes reads a page of the types of rows without a route, after a type; "" comes before all. It returns the types
// that match, and the type after which the next page begins, "" at the end.
func UnroutedTypes(ctx context.Context, conn session.Querier, after string, match func(eventType string) bool) (types []string, next string, err error) {
	rows, err := conn.Query(ctx, sqlTypesPage, after, typesPage)
	if err != nil {
		return nil, "", err
	}

	n := 0
	var t string
	_, err = pgx.ForEachRow(rows, []any{&t}, func() error {
		n++
		if match(t) {
			types = append(types, t)
		}
		return nil
	})

	if n == typesPage {
		next = t
	}

	return types, next, err
}

// Reroute makes a page of the rows without a route of some types due, up to size events after an id. It returns the
// event at which the page ends, how many rows were made due, and whether there may be more. If the write of a row is
// ignored, the page ends where it began.
func Reroute(ctx context.Context, conn session.Querier, types []string, after int64, size int) (last int64, n int, more bool, err error) {
	var locked, changed int64

	last = after
	err = conn.QueryRow(ctx, sqlReroute, types, after, size).Scan(&last, &more, &locked, &changed)
	err = cmp.Or(err, session.CheckChanged("make due", changed, locked))
	if err != nil {
		last = after
	}

	return last, int(changed), more, err
}

// NextUnrouted returns the first event after an id that has a row without a route of some types.
func NextUnrouted(ctx context.Context, conn session.Querier, types []string, after int64) (id int64, err error) {
	err = conn.QueryRow(ctx, SQLUnroutedPage+`SELECT coalesce(max(event_id), $2) FROM page`, types, after, 1).Scan(&id)
	return id, err
}
