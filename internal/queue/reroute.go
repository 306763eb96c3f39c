package queue

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
)

const (
	// reroutePage is how many rows one statement of Reroute reads, and so the most that it changes: some
	// ten milliseconds. It reads at least one of each type. After a timeout the pages are smaller, down to leastPage.
	reroutePage = 2000
	leastPage   = 20
	// rerouteFor bounds one call of Reroute, so that the leases of dead relays do not wait for it. The
	// keeper's session is free for others after each page.
	rerouteFor = 500 * time.Millisecond
)

// walk is the progress of Reroute through the unrouted events, in the order of their ids: each is read
// once, however many dead index entries the walk leaves behind.
type walk struct {
	after int64 // the walk continues behind this event
	page  int
}

func newWalk() walk { return walk{after: math.MinInt64, page: reroutePage} }

// sqlUnroutedTypes skips from type to type in the index: two index descents for each.
const sqlUnroutedTypes = `WITH RECURSIVE t(type) AS (
		(SELECT event_type FROM outbox_deliveries WHERE state = 'unrouted' ORDER BY event_type LIMIT 1)
		UNION ALL
		SELECT (SELECT event_type FROM outbox_deliveries WHERE state = 'unrouted' AND event_type > t.type ORDER BY event_type LIMIT 1)
		FROM t WHERE t.type IS NOT NULL)
	SELECT type FROM t WHERE type IS NOT NULL`

// sqlReroute makes due the unrouted events of some types in one page: of each type as many as make $3
// together, and none that comes behind one that was not read. No other row is read.
const sqlReroute = `WITH share AS (SELECT greatest($3::bigint / greatest(cardinality($2::text[]), 1), 1) AS n),
	pages AS MATERIALIZED (SELECT w.* FROM share, unnest($2::text[]) AS t(type)
		CROSS JOIN LATERAL (SELECT event_id, destination, event_type FROM outbox_deliveries
			WHERE state = 'unrouted' AND event_type = t.type AND event_id > $1 ORDER BY event_id LIMIT share.n) AS w),
	cut AS (SELECT min(last) AS id FROM (SELECT max(event_id) AS last FROM pages GROUP BY event_type HAVING count(*) = (SELECT n FROM share)) AS complete),
	page AS MATERIALIZED (SELECT event_id, destination FROM pages WHERE event_id <= coalesce((SELECT id FROM cut), 9223372036854775807)),
	due AS (
		UPDATE outbox_deliveries AS d SET state = 'retry', available_at = clock_timestamp(), updated_at = clock_timestamp(),
			error_class = NULL, last_error = NULL
		FROM page AS p WHERE d.event_id = p.event_id AND d.destination = p.destination AND d.state = 'unrouted'
		RETURNING d.event_id)
	SELECT coalesce(max(event_id), $1), (SELECT id FROM cut) IS NOT NULL, (SELECT count(*) FROM due) FROM page`

// Reroute implements [Housekeeper]. Only one goroutine may call it.
func (k *Keeper) Reroute(ctx context.Context, match func(string) bool) (n int, more bool, err error) {
	routed, err := k.routedTypes(ctx, match)
	if err != nil || len(routed) == 0 {
		k.walk.after = math.MinInt64
		return 0, false, err
	}
	for begin := time.Now(); time.Since(begin) < rerouteFor; {
		some, full, err := k.reroutePage(ctx, routed)
		n += some
		switch {
		case store.IsCanceled(err):
			k.walk.page = max(k.walk.page/4, leastPage)
			return n, true, err
		case err != nil:
			return n, true, err
		case !full:
			k.walk = newWalk()
			return n, false, nil
		}
		k.walk.page = min(2*k.walk.page, reroutePage)
	}
	return n, true, nil
}

// reroutePage takes one step of the walk, and reports whether the page was full.
func (k *Keeper) reroutePage(ctx context.Context, routed []string) (n int, full bool, err error) {
	err = k.Do(ctx, "make due the events whose type has gained a route", func(ctx context.Context, c *session.Conn) error {
		return c.QueryRow(ctx, sqlReroute, k.walk.after, routed, k.walk.page).Scan(&k.walk.after, &full, &n)
	})
	return n, full, err
}

// routedTypes returns the event types that match and have unrouted events.
func (k *Keeper) routedTypes(ctx context.Context, match func(string) bool) (routed []string, err error) {
	err = k.Do(ctx, "list event types without a route", func(ctx context.Context, c *session.Conn) error {
		rows, err := c.Query(ctx, sqlUnroutedTypes)
		if err != nil {
			return err
		}
		var t string
		_, err = pgx.ForEachRow(rows, []any{&t}, func() error {
			if match(t) {
				routed = append(routed, t)
			}
			return nil
		})
		return err
	})
	return routed, err
}
