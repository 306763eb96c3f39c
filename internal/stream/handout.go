package stream

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/routes"
	"github.com/notifyd/notifyd/internal/session"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// handBatch is how many events one transaction hands out.
const handBatch = 2000

// sqlWaiting reads a page of rows without a route, in the order of ids.
const sqlWaiting = deliveries.SQLUnroutedPage + `SELECT d.event_id, d.event_type, coalesce(e.aggregate_type, ''), coalesce(e.aggregate_id, ''), e.id IS NULL
FROM page AS d LEFT JOIN outbox_events AS e ON e.id = d.event_id ORDER BY d.event_id`

// sqlDecided reads rows from the time as a queue that are due and have no destination yet.
const sqlDecided = `SELECT d.event_id, d.event_type, coalesce(e.aggregate_type, ''), coalesce(e.aggregate_id, ''), e.id IS NULL
FROM (SELECT event_id, event_type FROM outbox_deliveries WHERE destination = '' AND state = 'retry' AND available_at <= now()
	ORDER BY available_at, event_id LIMIT $1) AS d
LEFT JOIN outbox_events AS e ON e.id = d.event_id ORDER BY d.event_id`

// sqlHand inserts a row for each destination that gets an event, for the shard to which the event belongs.
func sqlHand() string {
	return `WITH n AS MATERIALIZED (SELECT destination, max(shards) AS shards FROM outbox_positions GROUP BY destination HAVING max(shards) > 1)
INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key, shard)
SELECT p.id, p.destination, p.type, p.state, nullif(p.key, ''),
	coalesce((SELECT 1 + ` + outboxsql.Hash("e.") + ` % n.shards FROM n, outbox_events AS e WHERE n.destination = p.destination AND e.id = p.id),
		(SELECT 1 FROM n WHERE n.destination = p.destination), 0)
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[]) AS p(id, destination, type, state, key)
ON CONFLICT DO NOTHING`
}

// handOut gives events that had no route to destinations that get them now, and notifies waiting
// destinations when no such events are left.
func (r *router) handOut(ctx context.Context, conn *session.Conn) error {
	if r.dirty { // events that have just been read may be among them
		if err := r.save(ctx, conn); err != nil {
			return err
		}
	}
	moved, err := r.handStored(ctx, conn)
	if err != nil || ctx.Err() != nil {
		return err
	}
	told, err := r.finish(ctx, conn)
	if err != nil {
		return err
	}
	if moved || told {
		return r.e.announce(ctx, conn)
	}
	return nil
}

// handStored hands out all stored events that have gained a route, in order. Events for a
// destination that has not come yet stay.
func (r *router) handStored(ctx context.Context, conn *session.Conn) (moved bool, err error) {
	if r.unsorted {
		types, err := r.routedTypes(ctx, conn)
		if err != nil {
			return false, err
		}
		for after := int64(math.MinInt64); len(types) > 0 && ctx.Err() == nil; {
			all, err := r.hand(ctx, conn, sqlWaiting, types, after, handBatch)
			if err != nil {
				return moved, err
			}
			if len(all.looked) == 0 {
				break
			}
			moved, after = true, slices.Max(all.looked)
		}
		r.unsorted = ctx.Err() != nil
	}
	for ctx.Err() == nil {
		all, err := r.hand(ctx, conn, sqlDecided, handBatch)
		if err != nil {
			return moved, err
		}
		if len(all.looked) == 0 {
			break
		}
		moved = true
	}
	return moved, nil
}

// routedTypes returns the types of rows without a route that have gained one.
func (r *router) routedTypes(ctx context.Context, conn *session.Conn) ([]string, error) {
	types, err := deliveries.UnroutedTypes(ctx, conn, func(t string) bool { return r.routes.Gotten(r.routes.Of(t)) })
	if err != nil {
		return nil, fmt.Errorf("list event types without a route: %w", err)
	}
	return types, nil
}

// hand hands out some rows, and returns the rows that it has read.
func (r *router) hand(ctx context.Context, conn *session.Conn, query string, args ...any) (all handing, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{}, func(tx pgx.Tx) error {
		// Locks the position against a successor, and proves that it is ours, and that the loaded
		// routes are current.
		if ok, err := r.pos.Save(ctx, tx, r.reader.Head(), r.reader.Gaps(), 0); err != nil || !ok {
			return cmp.Or(err, position.ErrFenced)
		}
		rows, err := tx.Query(ctx, query, args...)
		if err != nil {
			return err
		}
		all = handing{kept: []int64{}} // never nil: <> ALL (NULL) is never true
		var e delivery.Event
		var missing bool
		_, err = pgx.ForEachRow(rows, []any{&e.ID, &e.Type, &e.AggregateType, &e.AggregateID, &missing}, func() error {
			all.looked = append(all.looked, e.ID)
			if missing {
				all.missing, all.delays = append(all.missing, e.ID), append(all.delays, r.e.missing.Met("", e.ID).Microseconds())
			} else {
				r.share(&all, &e, query == sqlDecided)
			}
			return nil
		})
		if err != nil || len(all.looked) == 0 {
			return err
		}
		if _, err := tx.Exec(ctx, sqlHand(), all.ids, all.names, all.types, all.states, all.keys); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlUndecided, all.kept); err != nil {
			return err
		}
		if len(all.missing) > 0 {
			if _, err := tx.Exec(ctx, sqlMissing, all.missing, all.delays, engine.ClassMissing, engine.ErrMissing.Error()); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, `DELETE FROM outbox_deliveries WHERE destination = '' AND event_id = ANY($1) AND event_id <> ALL($2)`,
			all.looked, append(all.kept, all.missing...)) // kept is never nil
		return err
	})
	if err != nil {
		return handing{}, fmt.Errorf("hand out events that had no route: %w", err)
	}
	return all, nil
}

// sqlUndecided records that delayed events from the time as a queue have no route.
const sqlUndecided = `UPDATE outbox_deliveries SET state = 'unrouted', updated_at = now()
WHERE destination = '' AND event_id = ANY($1) AND state <> 'unrouted'`

// sqlMissing makes rows without a destination due later, because their events are missing. Then they are
// decided like those from the time as a queue, since the search for events without a route may have ended.
const sqlMissing = `UPDATE outbox_deliveries AS d SET state = 'retry', updated_at = now(),
	available_at = clock_timestamp() + p.delay * interval '1 microsecond', error_class = $3, last_error = $4
FROM unnest($1::bigint[], $2::bigint[]) AS p(event_id, delay) WHERE d.destination = '' AND d.event_id = p.event_id`

// handing collects the rows to write.
type handing struct {
	looked  []int64 // rows that were read
	missing []int64 // of these, those whose events are missing
	delays  []int64 // until the next looks at them, in microseconds
	kept    []int64 // rows that stay: they have no route, or one to a destination that has not come yet
	ids     []int64
	names   []string
	types   []string
	states  []string
	keys    []string
}

// share adds the rows of an event. A destination that waits for them finds them parked, and begins
// with the first of each aggregate. A working destination has received all events that it had
// passed; but deliveries decided in the time as a queue, and due now, it finds due.
func (r *router) share(all *handing, e *delivery.Event, decided bool) {
	v := r.routes.Of(e.Type)
	if !r.routes.Gotten(v) || !decided && r.routes.Awaited(v) {
		all.kept = append(all.kept, e.ID)
	}
	key := dispatch.OrderingKey(e)
	for to := range r.routes.Takers(v, e.ID) {
		if !decided && to.Handed {
			continue
		}
		state := deliveries.Retry
		if key != "" && !to.Handed {
			state = deliveries.Parked
		}
		all.ids, all.names, all.types = append(all.ids, e.ID), append(all.names, to.Destination), append(all.types, e.Type)
		all.states, all.keys = append(all.states, string(state)), append(all.keys, key)
	}
}

// finish notifies waiting destinations that they have been handed everything: the router has read
// as far as they had when they got their route, and seen all that they have seen.
func (r *router) finish(ctx context.Context, conn *session.Conn) (told bool, err error) {
	for to := range r.complete() {
		err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{}, func(tx pgx.Tx) error {
			if ok, err := r.pos.Save(ctx, tx, r.reader.Head(), r.reader.Gaps(), 0); err != nil || !ok {
				return cmp.Or(err, position.ErrFenced)
			}
			return routes.Handed(ctx, tx, to)
		})
		if err != nil {
			return told, fmt.Errorf("finish handing out: %w", err)
		}
		to.Handed, told = true, true
	}
	return told, nil
}
