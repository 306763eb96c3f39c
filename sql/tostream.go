package outboxsql

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/sleep"
)

const (
	// lookBatch is how many events one statement reads.
	readBatch = 20_000
	// drawersPoll is how often to check whether transactions have ended.
	drawersPoll = 50 * time.Millisecond
)

// toStream converts the waiting events of a queue into the open ranges of a stream.
//
// The stream begins after the last marked event. Above that, no event is marked, so all present and
// future events are read in the order of ids. Below it, unmarked events are open: ranges from one
// fresh event to the next, as long as no marked one is in between. Without relays no other event is
// marked.
//
// An event that is still invisible must not be missing from the ranges. Its id can be below the
// last mark only if its transaction drew it before the id of the last marked event was drawn.
// Drawing an id locks the sequence until the end of the transaction. So toStream waits for the
// transactions that hold this lock after the last mark is known. All others have no id below the
// mark, or have ended. Then it reads the fresh events. Transactions that draw later draw ids above
// the mark.
//
// Until the last step the table is a queue, and an interrupted change loses nothing.
func (m *modeChange) toStream(ctx context.Context) error {
	if err := m.giveBack(ctx); err != nil {
		return fmt.Errorf("release leases: %w", err)
	}

	m.say("storing the aggregates of deliveries to retry")
	if err := m.keyRows(ctx); err != nil {
		return fmt.Errorf("store the aggregates of deliveries: %w", err)
	}

	m.say("finding the last event that is not fresh")
	head, err := m.lastMarked(ctx)
	if err != nil {
		return fmt.Errorf("find the last event that is not fresh: %w", err)
	}

	var open idset.Set
	if head > 0 {
		m.say("waiting for transactions that may have written below event %d", head)
		if err := m.awaitDrawers(ctx); err != nil {
			return err
		}

		open, err = m.freshBelow(ctx, head)
		if err != nil {
			return err
		}
	}

	m.say("making the table a stream that begins after event %d, with %d ranges open below it", head, len(open))
	return m.alone(ctx, `LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE;
		DELETE FROM outbox_positions;
		DELETE FROM outbox_routes;`+asStream(head, open))
}

// asStream makes the table a stream that begins there.
func asStream(head int64, open idset.Set) string {
	return fmt.Sprintf(`DROP INDEX IF EXISTS outbox_events_fresh;
		UPDATE outbox_mode SET mode = 'stream', becoming = NULL, origin_head = %d, origin_open = '%s',
			origin_sequence = `+pgschema.Sequence+`, changed_at = clock_timestamp();`, head, open)
}

// giveBack makes due the deliveries leased by dead relays.
func (m *modeChange) giveBack(ctx context.Context) error {
	m.say("giving back the deliveries of dead relays")
	return m.batches(ctx, `UPDATE outbox_deliveries SET state = 'retry', available_at = clock_timestamp(), updated_at = clock_timestamp(),
		lease_owner = NULL, lease_token = NULL, lease_until = NULL
		WHERE ctid = ANY(ARRAY(SELECT ctid FROM outbox_deliveries WHERE state = 'running' LIMIT $1 FOR UPDATE))`)
}

// batches repeats a statement that changes up to $1 rows until it finds fewer.
func (m *modeChange) batches(ctx context.Context, sql string) error {
	for n := int64(modeBatch); n == modeBatch; {
		err := m.step(ctx, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, sql, modeBatch)
			n = tag.RowsAffected()
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// orderingKey is the key by which a stream keeps the order of an aggregate, the same as in package
// dispatch: a longer one ends, at a whole character, in a hash.
const orderingKey = `CASE
	WHEN octet_length(k.bytes) <= 200 THEN k.name
	ELSE convert_from(substring(k.bytes FROM 1 FOR CASE
		WHEN get_byte(k.bytes, 128) & 192 <> 128 THEN 128
		WHEN get_byte(k.bytes, 127) & 192 <> 128 THEN 127
		WHEN get_byte(k.bytes, 126) & 192 <> 128 THEN 126
		ELSE 125 END), 'UTF8') || '#' || encode(sha256(k.bytes), 'hex') END`

// keyRows stores the aggregate of deliveries that a queue has started and has to retry: in a
// stream, later events of the aggregate wait for them.
func (m *modeChange) keyRows(ctx context.Context) error {
	last := struct {
		id          int64
		destination string
	}{id: math.MinInt64}

	for n := modeBatch; n == modeBatch; {
		err := m.step(ctx, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, `SELECT event_id, destination FROM outbox_deliveries
				WHERE (event_id, destination) > ($1, $2) ORDER BY event_id, destination LIMIT $3`, last.id, last.destination, modeBatch)
			if err != nil {
				return err
			}

			var ids []int64
			var names []string
			n = 0
			_, err = pgx.ForEachRow(rows, []any{&last.id, &last.destination}, func() error {
				n++
				if last.destination != "" && (m.options.Unordered == nil || !m.options.Unordered(last.destination)) {
					ids = append(ids, last.id)
					names = append(names, last.destination)
				}
				return nil
			})
			if err != nil || len(ids) == 0 {
				return err
			}

			// CASE hides the condition from the partial indexes: without statistics, the planner takes that of due
			// deliveries in place of the primary key, and reads all those of the destination for each row.
			_, err = tx.Exec(ctx, `UPDATE outbox_deliveries AS d SET ordering_key = `+orderingKey+`
				FROM unnest($1::bigint[], $2::text[]) AS p(event_id, destination)
				JOIN outbox_events AS e ON e.id = p.event_id AND e.id >= $3 AND e.id <= $4
				CROSS JOIN LATERAL (SELECT name, convert_to(name, 'UTF8') AS bytes FROM (
					SELECT coalesce(e.aggregate_type, '') || '/' || e.aggregate_id AS name) AS n) AS k
				WHERE d.event_id = p.event_id AND d.destination = p.destination
					AND CASE WHEN d.state = 'retry' AND d.ordering_key IS NULL THEN true END
					AND e.aggregate_id <> '' AND (e.available_at IS NULL OR e.available_at <= clock_timestamp())`,
				ids, names, slices.Min(ids), slices.Max(ids))
			return err
		})
		if err != nil {
			return err
		}
	}

	return nil
}

// lastMarked returns the highest id of an event that is not fresh; 0 without such events.
func (m *modeChange) lastMarked(ctx context.Context) (head int64, err error) {
	var looked int64
	for upto := int64(math.MaxInt64); ; {
		var lowest, marked *int64
		var n int64
		err := m.step(ctx, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, `SELECT min(id), max(id) FILTER (WHERE state <> 'fresh'), count(*) FROM (
				SELECT id, state FROM outbox_events WHERE id <= $1 ORDER BY id DESC LIMIT $2) AS e`, upto, readBatch).Scan(&lowest, &marked, &n)
		})
		switch {
		case err != nil:
			return 0, err
		case marked != nil:
			return *marked, nil
		case lowest == nil:
			return 0, nil
		}

		upto = *lowest - 1
		looked += n
		m.count("%d events read", looked)
	}
}

// awaitDrawers waits until all transactions have ended that may have drawn an id below the last
// mark and are still invisible.
func (m *modeChange) awaitDrawers(ctx context.Context) error {
	const drawers = ` FROM pg_locks WHERE locktype = 'relation' AND relation = to_regclass(pg_get_serial_sequence($1, 'id'))
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND mode = 'RowExclusiveLock' AND granted`

	var open []string
	err := m.conn.QueryRow(ctx, `SELECT coalesce(array_agg(virtualtransaction), '{}')`+drawers, m.table("outbox_events")).Scan(&open)
	if err != nil {
		return fmt.Errorf("find transactions that have drawn ids: %w", err)
	}

	w := wait{change: &m.change, began: time.Now()}
	for {
		// One of them may have been prepared. It then has another name and no process.
		var left int
		err := m.conn.QueryRow(ctx, `SELECT count(*)`+drawers+`
			AND (virtualtransaction = ANY($2) OR pid IS NULL)`, m.table("outbox_events"), open).Scan(&left)
		switch {
		case err != nil:
			return fmt.Errorf("find transactions that have drawn ids: %w", err)
		case left == 0:
			return nil
		case w.tired():
			who := m.sessions(ctx, `SELECT pid`+drawers+` AND virtualtransaction = ANY($2)`, m.table("outbox_events"), open)
			return fmt.Errorf("for %v transactions that have drawn ids have not ended (%s; prepared ones: see pg_prepared_xacts): "+
				"end them, and repeat the command", time.Since(w.began).Round(time.Millisecond), who)
		case !sleep.For(ctx, drawersPoll):
			return fmt.Errorf("wait for transactions that have drawn ids: %w", context.Cause(ctx))
		}
	}
}

// freshBelow returns ranges that contain all fresh events up to head and no other event: at most
// maxOpen of them, the highest ones. Events below those are stored in outbox_deliveries, where the
// unrouted scanner finds them.
func (m *modeChange) freshBelow(ctx context.Context, head int64) (open idset.Set, err error) {
	m.say("finding waiting events")
	dropped := 0
	for low, n := int64(math.MinInt64), readBatch; n == readBatch; {
		var found idset.Set
		found, n, err = m.freshFrom(ctx, low, head)
		if err != nil {
			return nil, fmt.Errorf("find waiting events: %w", err)
		}
		if len(found) == 0 {
			break
		}

		// The batch begins with the event that ended the previous one.
		if len(open) > 0 && found[0].From <= open[len(open)-1].To {
			open[len(open)-1].To = found[0].To
			found = found[1:]
		}

		open = append(open, found...)
		if len(open) > 0 {
			low = open[len(open)-1].To
		}

		if surplus := len(open) - maxOpen; surplus > 0 {
			dropped += surplus
			open = append(open[:0], open[surplus:]...)
		}

		m.count("%d ranges found", int64(dropped+len(open)))
	}

	if dropped > 0 {
		m.say("%d ranges are too many: the events of the first %d are deferred", dropped+len(open), dropped)
		err = m.deferFresh(ctx, open[0].From)
	}

	return open, err
}

// freshFrom returns the ranges of the first readBatch fresh events with ids from low to head, and the number of these events.
func (m *modeChange) freshFrom(ctx context.Context, low, head int64) (found idset.Set, n int, err error) {
	err = m.step(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `WITH f AS MATERIALIZED (
				SELECT id FROM outbox_events WHERE state = 'fresh' AND id >= $1 AND id <= $2 ORDER BY id LIMIT $3),
			pairs AS (SELECT id, lag(id) OVER (ORDER BY id) AS before FROM f),
			seen AS (SELECT id, before + 1 < id AND EXISTS
				(SELECT FROM outbox_events AS e WHERE e.id > p.before AND e.id < p.id) AS apart FROM pairs AS p),
			numbered AS (SELECT id, count(*) FILTER (WHERE apart) OVER (ORDER BY id) AS n FROM seen)
			SELECT min(id), max(id), count(*)::int FROM numbered GROUP BY n ORDER BY n`, low, head, readBatch)
		if err != nil {
			return err
		}

		var s idset.Range
		var some int
		found = nil
		n = 0
		_, err = pgx.ForEachRow(rows, []any{&s.From, &s.To, &some}, func() error {
			found = append(found, s)
			n += some
			return nil
		})

		return err
	})
	return found, n, err
}

// deferFresh turns fresh events below an id into deferred events, which queues and streams treat alike.
func (m *modeChange) deferFresh(ctx context.Context, below int64) error {
	var done int64
	for n := int64(modeBatch); n == modeBatch; {
		err := m.step(ctx, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, `WITH f AS MATERIALIZED (
					SELECT id, event_type, available_at FROM outbox_events WHERE state = 'fresh' AND id < $1 ORDER BY id LIMIT $2),
				put AS (INSERT INTO outbox_deliveries (event_id, destination, event_type, state, available_at)
					SELECT id, '', event_type, 'retry', `+availableAt+` FROM f ON CONFLICT DO NOTHING),
				marked AS (UPDATE outbox_events AS e SET state = 'deferred' FROM f WHERE e.id = f.id)
				SELECT count(*) FROM f`, below, modeBatch).Scan(&n)
		})
		if err != nil {
			return fmt.Errorf("defer events: %w", err)
		}

		done += n
		m.count("%d events deferred", done)
	}

	return nil
}

// availableAt is when an event is due, within a range that can be calculated with.
const availableAt = `least(greatest(available_at, clock_timestamp()), clock_timestamp() + interval '100 years')`
