package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Oldest returns how long the event has waited that has waited longest, 0 if
// none waits. Dead letters and unrouted events do not count, nor what is not
// yet due to be delivered. Fresh events are looked for above the id after,
// because an index that is full of delivered ones may be long.
func (k *Keeper) Oldest(ctx context.Context, after int64) (age time.Duration, err error) {
	var us int64
	err = k.do(ctx, "look for the oldest waiting event", func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, `SELECT coalesce(extract(epoch FROM clock_timestamp() - least(
				(SELECT greatest(created_at, available_at) FROM outbox_events WHERE state = 'fresh' AND id > $1 ORDER BY id LIMIT 1),
				(SELECT greatest(e.created_at, e.available_at) FROM outbox_events AS e
					WHERE e.id = (SELECT event_id FROM outbox_deliveries
						WHERE state IN ('retry', 'running') AND (attempts > 0 OR available_at <= clock_timestamp())
						ORDER BY event_id LIMIT 1)))) * 1000000, 0)::bigint`, after).Scan(&us)
	})
	return max(0, time.Duration(us)*time.Microsecond), err
}
