package stream

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/dispatch"
)

// handBatch is how many events are handed out in one transaction.
const handBatch = 2000

// sqlTypes lists the types of rows without a route, skipping from type to type in the
// index.
const sqlTypes = `WITH RECURSIVE t(type) AS (
	(SELECT event_type FROM outbox_deliveries WHERE state = 'unrouted' ORDER BY event_type LIMIT 1)
	UNION ALL
	SELECT (SELECT event_type FROM outbox_deliveries WHERE state = 'unrouted' AND event_type > t.type ORDER BY event_type LIMIT 1)
	FROM t WHERE t.type IS NOT NULL)
SELECT type FROM t WHERE type IS NOT NULL`

// sqlWaiting reads the first rows of some types, in the order of ids.
const sqlWaiting = `SELECT d.event_id, d.event_type, coalesce(e.aggregate_type, ''), coalesce(e.aggregate_id, ''), e.id IS NULL
FROM (SELECT w.* FROM unnest($1::text[]) AS t(type)
	CROSS JOIN LATERAL (SELECT event_id, event_type FROM outbox_deliveries
		WHERE state = 'unrouted' AND event_type = t.type ORDER BY event_id LIMIT $2) AS w
	ORDER BY w.event_id LIMIT $2) AS d
LEFT JOIN outbox_events AS e ON e.id = d.event_id ORDER BY d.event_id`

// sqlDecided reads rows of the time as a queue that have no destination yet, and are due.
const sqlDecided = `SELECT d.event_id, d.event_type, coalesce(e.aggregate_type, ''), coalesce(e.aggregate_id, ''), e.id IS NULL
FROM (SELECT event_id, event_type FROM outbox_deliveries WHERE destination = '' AND state = 'retry' AND available_at <= now()
	ORDER BY available_at, event_id LIMIT $1) AS d
LEFT JOIN outbox_events AS e ON e.id = d.event_id ORDER BY d.event_id`

// sqlHand makes a row of each destination that gets an event.
const sqlHand = `INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key)
SELECT p.id, p.destination, p.type, p.state, nullif(p.key, '')
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[]) AS p(id, destination, type, state, key)
ON CONFLICT DO NOTHING`

// handOut gives what had no route to those who get it now, and tells destinations that
// wait for it when there is nothing left.
func (r *router) handOut(ctx context.Context, conn *pgx.Conn) error {
	if r.dirty { // what has just been read may be among it
		if err := r.save(ctx, conn); err != nil {
			return err
		}
	}
	moved := false
	for ctx.Err() == nil {
		var types []string
		var err error
		if r.unsorted {
			if types, err = r.routedTypes(ctx, conn); err != nil {
				return err
			}
			r.unsorted = len(types) > 0
		}
		n := 0
		if len(types) > 0 {
			n, err = r.hand(ctx, conn, sqlWaiting, types, handBatch)
		}
		if err == nil && n == 0 {
			n, err = r.hand(ctx, conn, sqlDecided, handBatch)
		}
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		moved = true
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

// routedTypes returns the types of rows without a route that have one by now.
func (r *router) routedTypes(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	rows, err := conn.Query(ctx, sqlTypes)
	if err != nil {
		return nil, fmt.Errorf("look for event types without a route: %w", err)
	}
	types, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for event types without a route: %w", err)
	}
	return slices.DeleteFunc(types, func(t string) bool {
		v := r.routes.of(t)
		return len(v.best) == 0 || v.expected
	}), nil
}

// hand hands out some rows, and returns how many there were.
func (r *router) hand(ctx context.Context, conn *pgx.Conn, query string, args ...any) (n int, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{}, func(tx pgx.Tx) error {
		// Locks the position against a successor, and proves that it is ours.
		if ok, err := r.pos.Save(ctx, tx, r.reader.Head(), r.reader.Gaps(), 0); err != nil || !ok {
			return cmp.Or(err, errFenced)
		}
		rows, err := tx.Query(ctx, query, args...)
		if err != nil {
			return err
		}
		all := handing{unrouted: []int64{}} // not NULL, which nothing is unlike
		var e dispatch.Event
		var orphan bool
		_, err = pgx.ForEachRow(rows, []any{&e.ID, &e.Type, &e.AggregateType, &e.AggregateID, &orphan}, func() error {
			n++
			all.done = append(all.done, e.ID)
			if !orphan {
				r.share(&all, &e)
			}
			return nil
		})
		if err != nil || n == 0 {
			return err
		}
		if _, err := tx.Exec(ctx, sqlHand, all.ids, all.names, all.types, all.states, all.keys); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlUndecided, all.unrouted); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `DELETE FROM outbox_deliveries WHERE destination = '' AND event_id = ANY($1) AND event_id <> ALL($2)`, all.done, all.unrouted)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("hand out events that had no route: %w", err)
	}
	return n, nil
}

// sqlUndecided notes that delayed events of the time as a queue have no route.
const sqlUndecided = `UPDATE outbox_deliveries SET state = 'unrouted', updated_at = now() WHERE destination = '' AND event_id = ANY($1)`

// handing are rows to be.
type handing struct {
	done     []int64 // rows that were looked at
	unrouted []int64 // those of them that have no route
	ids      []int64
	names    []string
	types    []string
	states   []string
	keys     []string
}

// share adds the rows of an event. A destination that waits for them finds them parked,
// and begins with the first of each aggregate; one that is at work finds them due.
func (r *router) share(all *handing, e *dispatch.Event) {
	v := r.routes.of(e.Type)
	if len(v.best) == 0 || v.expected {
		all.unrouted = append(all.unrouted, e.ID)
		return
	}
	key := dispatch.OrderingKey(e)
	for _, i := range v.best {
		to := &r.routes.all[i]
		if !to.passed(e.ID) {
			continue // it reads the event by itself
		}
		state := stateRetry
		if key != "" && !to.handed {
			state = stateParked
		}
		all.ids, all.names, all.types = append(all.ids, e.ID), append(all.names, to.destination), append(all.types, e.Type)
		all.states, all.keys = append(all.states, state), append(all.keys, key)
	}
}

// finish tells those who wait that they have been handed everything: the router has
// read as far as they had when they got their route, and seen all that they have seen.
func (r *router) finish(ctx context.Context, conn *pgx.Conn) (told bool, err error) {
	gaps := r.reader.Gaps()
	for i := range r.routes.all {
		to := &r.routes.all[i]
		if r.routes.awaits(to.pattern) || !to.complete(r.reader.Head(), gaps) {
			continue
		}
		err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{}, func(tx pgx.Tx) error {
			if ok, err := r.pos.Save(ctx, tx, r.reader.Head(), gaps, 0); err != nil || !ok {
				return cmp.Or(err, errFenced)
			}
			_, err := tx.Exec(ctx, `UPDATE outbox_routes SET handed = true WHERE destination = $1 AND pattern = $2`, to.destination, to.pattern)
			return err
		})
		if err != nil {
			return told, fmt.Errorf("finish handing out: %w", err)
		}
		to.handed, told = true, true
	}
	return told, nil
}

// complete reports whether the destination waits for nothing but to be handed what is
// stored: the router, which has these gaps below its head, has read all that it had passed.
func (r *route) complete(head int64, gaps Ranges) bool {
	return !r.handed && head >= r.head && r.saw(gaps)
}

// saw reports whether all gaps up to the head of the route were open for its
// destination as well: what comes up there, that will read by itself.
func (r *route) saw(gaps Ranges) bool {
	for _, g := range gaps {
		if g.From > r.head {
			break
		}
		i, found := slices.BinarySearchFunc(r.open, g.From, func(o Range, id int64) int { return compare(o.To, id) })
		if !found && i == len(r.open) || r.open[i].From > g.From || r.open[i].To < min(g.To, r.head) {
			return false
		}
	}
	return true
}
