package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// OldestLooked bounds the events read per position to find the oldest one: only the type shows whether an event is
// for this destination.
const OldestLooked = 1000

// These queries return the ids that a table has assigned. A plain table has assigned all ids up to the last one. A
// partition begins 2^32 ids after the previous one, whose remaining ids are never assigned: a closed partition counts
// up to its highest event. Higher ids of open or rolled back transactions are missing from the lag; these are only
// the transactions that were open when the day ended.
const (
	sqlUsedPlain = `SELECT int8multirange(int8range(NULL, l.last, '[]')) AS ids FROM l`

	sqlUsedPartitioned = `SELECT coalesce(range_agg(int8range(q.low, q.top, '[]')), '{}') AS ids
		FROM (SELECT f.low, CASE WHEN l.last < f.high THEN l.last ELSE
				(SELECT e.id FROM outbox_events AS e WHERE e.id >= f.low AND e.id < f.high ORDER BY e.id DESC LIMIT 1) END AS top
			FROM l, outbox_partitions() AS f WHERE f.low <= l.last) AS q
		WHERE q.top IS NOT NULL`
)

// UsedIDs returns the highest id that the table of a schema has assigned, and all possibly assigned ids as the text
// of an int8multirange. The search_path must lead to the schema.
func UsedIDs(ctx context.Context, conn outboxsql.DB, schema string) (last int64, used string, err error) {
	partitioned, err := pgschema.Partitioned(ctx, conn, schema)
	if err != nil {
		return 0, "", err
	}

	ids := sqlUsedPlain
	if partitioned {
		ids = sqlUsedPartitioned
	}

	err = conn.QueryRow(ctx, `WITH l AS MATERIALIZED (SELECT coalesce(outbox_last_id(), 0) AS last)
		SELECT l.last, used.ids::text FROM l, (`+ids+`) AS used`).Scan(&last, &used)
	if err != nil {
		return 0, "", fmt.Errorf("read the assigned ids: %w", err)
	}

	return last, used, nil
}

// sqlHolders returns the relays with valid leases, and their sessions.
const sqlHolders = `SELECT m.owner, m.pid, a.application_name, host(a.client_addr) AS client
	FROM outbox_members AS m LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = m.pid
	WHERE m.alive_until > clock_timestamp()`

func sqlPositions(partitioned bool) string {
	used := sqlUsedPlain
	if partitioned {
		used = sqlUsedPartitioned
	}

	return `WITH l AS MATERIALIZED (SELECT outbox_last_id() AS last),
		used AS MATERIALIZED (` + used + `),
		held AS MATERIALIZED (` + sqlHolders + `),
		writing AS MATERIALIZED (` + sqlOldestWriter + `)
	SELECT p.destination, p.shard, p.n, p.number, p.head, ` + idset.SQLLowest("p.head", "p.open") + `, p.delivered, p.updated_at,
		p.sealed > p.void, p.owner,
		(SELECT coalesce(sum(upper(r) - lower(r)), 0) FROM unnest(p.open * used.ids) AS r)::bigint,
		(SELECT coalesce(sum(upper(r) - lower(r)), 0)
			FROM unnest(` + idset.SQLMissing("p.head", "p.open", "l.last") + ` * used.ids) AS r)::bigint,
		h.pid, coalesce(h.application_name, ''), coalesce(h.client, ''),
		(SELECT count(*) FROM outbox_members AS m, unnest(m.wants, m.layouts) AS w(destination, layout)
			WHERE m.alive_until > clock_timestamp() AND w.destination = p.destination AND coalesce(w.layout, '') <> p.layout),
		r.n, CASE WHEN r.n > ` + strconv.Itoa(observe.ManyRanges) + ` THEN coalesce((SELECT who FROM writing), '') ELSE '' END,
		EXISTS (SELECT FROM outbox_routes AS w WHERE w.destination = p.destination AND w.since > 0 AND w.until_head IS NULL
			AND NOT w.handed)
	FROM (SELECT *, count(*) OVER (PARTITION BY destination) AS n FROM outbox_positions ORDER BY destination, shard LIMIT $1) AS p
	CROSS JOIN l CROSS JOIN used CROSS JOIN LATERAL (SELECT count(*) AS n FROM unnest(p.open)) AS r
	LEFT JOIN held AS h ON h.owner = p.owner`
}

// sqlOldestWriter describes the oldest open transaction that has drawn an id: it holds the lock that nextval takes on
// the sequence. A prepared transaction has no process; the lock on its own number identifies it.
const sqlOldestWriter = `SELECT coalesce('prepared as ' || quote_literal(x.gid), 'pid ' || l.pid, 'prepared') AS who
	FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
		LEFT JOIN pg_locks AS t ON l.pid IS NULL AND t.pid IS NULL AND t.virtualtransaction = l.virtualtransaction
			AND t.locktype = 'transactionid' AND t.mode = 'ExclusiveLock'
		LEFT JOIN pg_prepared_xacts AS x ON x.transaction = t.transactionid
	WHERE l.locktype = 'relation' AND l.relation = to_regclass(pg_get_serial_sequence('outbox_events', 'id'))
		AND l.mode = 'RowExclusiveLock' AND l.granted
		AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
	ORDER BY coalesce(a.xact_start, x.prepared) NULLS FIRST LIMIT 1`

// sqlPositionsOldest returns the first events above each position, and in open ranges below it, by type. An open
// range may be wide and empty.
const sqlPositionsOldest = `SELECT p.destination, p.shard, e.event_type, min(e.id), min(` + sqlSince + `)
	FROM (SELECT destination, shard, head, open FROM outbox_positions ORDER BY destination, shard LIMIT $1) AS p CROSS JOIN LATERAL (
		(SELECT o.* FROM (SELECT r FROM unnest(p.open) AS r LIMIT $2) AS g CROSS JOIN LATERAL (
			SELECT id, event_type, created_at, available_at FROM outbox_events
			WHERE id >= lower(g.r) AND id < upper(g.r) ORDER BY id LIMIT $2) AS o LIMIT $2)
		UNION ALL
		(SELECT id, event_type, created_at, available_at FROM outbox_events WHERE id > p.head ORDER BY id LIMIT $2)) AS e
	WHERE e.available_at <= now() OR e.available_at IS NULL
	GROUP BY p.destination, p.shard, e.event_type`

// querier is a connection or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// lister is a connection or a transaction.
type lister interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// modeOf returns the mode of a schema's table. A schema without tables counts as a queue.
func modeOf(ctx context.Context, q querier, schema string) (mode outboxsql.Mode, err error) {
	table := pgx.Identifier{schema, "outbox_mode"}.Sanitize()
	exists := false
	if err := q.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, table).Scan(&exists); err != nil || !exists {
		return outboxsql.ModeQueue, err
	}

	err = q.QueryRow(ctx, `SELECT mode FROM `+table+` WHERE one`).Scan(&mode)
	return mode, err
}

// ListPositions returns the positions of a stream by destination and shard, without their oldest events. The
// search_path must lead to the schema.
func ListPositions(ctx context.Context, tx pgx.Tx, schema string) ([]observe.Position, error) {
	partitioned, err := pgschema.Partitioned(ctx, tx.Conn(), schema)
	if err != nil {
		return nil, err
	}
	return listPositions(ctx, tx, partitioned)
}

func listPositions(ctx context.Context, q lister, partitioned bool) ([]observe.Position, error) {
	rows, err := q.Query(ctx, sqlPositions(partitioned), backlogNames)
	if err != nil {
		return nil, err
	}

	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p observe.Position, err error) {
		var pid *int32
		var s observe.ShardSession
		err = row.Scan(&p.Destination, &p.Shard, &p.Shards, &p.Number, &p.Head, &p.Lowest, &p.Delivered, &p.UpdatedAt,
			&p.Copied, &p.Owner, &p.Open, &p.Lag, &pid, &s.Application, &s.Client, &p.OtherRelays, &p.Ranges,
			&p.OpenTransaction, &p.Unhanded)
		if pid != nil {
			s.PID = *pid
			p.Session = &s
		}

		return p, err
	})
	if err != nil || len(all) == 0 {
		return nil, err
	}

	replays, err := listReplays(ctx, q, partitioned, ReplaysRunning, backlogNames)
	if err != nil {
		return nil, err
	}

	lowest := slices.MinFunc(all, func(p, q observe.Position) int { return cmp.Compare(p.Lowest, q.Lowest) }).Lowest
	for i := range replays {
		lowest = min(lowest, replays[i].Lowest)
	}

	for i := range all {
		p := &all[i]
		p.HoldsBack = p.Lowest == lowest && p.Lag > 0

		at := slices.IndexFunc(replays, func(r observe.Replay) bool { return r.Destination == p.Destination && p.Shard == 0 })
		if at >= 0 {
			p.Replay = &replays[at]
			p.Replay.HoldsBack = p.Replay.Lowest == lowest
		}
	}

	return all, nil
}

// readPositions reads the position of each destination, without counting rows.
func (r *backlogReader) readPositions(ctx context.Context, tx pgx.Tx) error {
	all, err := ListPositions(ctx, tx, r.options.Schema)
	if err != nil {
		return err
	}

	b := &r.result
	b.Positions = all
	for i := range all {
		p := &all[i]
		b.Fresh.N = max(b.Fresh.N, int(p.Lag))
		if p.Destination != "" && p.Lag > 0 {
			d := r.destination(p.Destination)
			d.Fresh.N = max(d.Fresh.N, int(p.Lag)) // each shard reads all events
		}
	}

	return nil
}

// readPositionsOldest finds the oldest event that waits at each position.
func (r *backlogReader) readPositionsOldest(ctx context.Context, tx pgx.Tx) error {
	return each(ctx, tx, func(row pgx.CollectableRow) error {
		var name, eventType string
		var shard int
		var id int64
		var since time.Time
		if err := row.Scan(&name, &shard, &eventType, &id, &since); err != nil || !r.waitsFor(name, eventType) {
			return err
		}

		for i := range r.result.Positions {
			if p := &r.result.Positions[i]; p.Destination == name && p.Shard == shard {
				p.Oldest = older(p.Oldest, r.waiting(id, since))
			}
		}

		if name != "" { // an unrouted event waits for no destination
			d := r.destination(name)
			d.Oldest = older(d.Oldest, r.waiting(id, since))
		}

		return nil
	}, sqlPositionsOldest, backlogNames, OldestLooked)
}

// waitsFor reports whether an event that a position has not passed is for its destination. The destination "" has the
// unrouted events.
func (r *backlogReader) waitsFor(destination, eventType string) bool {
	if r.options.Route == nil {
		return destination != ""
	}
	to := r.options.Route(eventType)
	return slices.Contains(to, destination) || destination == "" && len(to) == 0
}

// readRetryOfStream is readRetry for a stream. A stream stores an event that is not available yet as a row of its
// destination; that row has no failed attempt.
func (r *backlogReader) readRetryOfStream(ctx context.Context, tx pgx.Tx) error {
	return each(ctx, tx, func(row pgx.CollectableRow) error {
		var name string
		var n, delayed, missing int
		var oldest *int64
		var due *time.Time
		if err := row.Scan(&name, &n, &delayed, &missing, &oldest, &due); err != nil {
			return err
		}

		more := n > r.options.Limit
		d := r.destination(name)
		d.Missing = r.count(missing)
		d.Retry = observe.Count{N: min(n-delayed, r.options.Limit), More: more}
		d.NextDue = due
		r.result.Delayed = r.result.Delayed.Plus(observe.Count{N: min(delayed, r.options.Limit), More: more && delayed > 0})
		r.remember(d, oldest)

		return nil
	}, sqlBacklogRetryOfStream, r.known(), r.options.Limit+1)
}

// sqlDelayed is true for the row of an event that is not available yet.
const sqlDelayed = `(attempts = 0 AND last_error IS NULL AND available_at > now())`

const (
	sqlBacklogRetryOfStream = `SELECT w.name, d.n, d.delayed, d.missing, d.oldest, d.due
	FROM unnest($1::text[]) AS w(name) CROSS JOIN LATERAL (
		SELECT count(*) AS n, count(*) FILTER (WHERE later) AS delayed,
			` + sqlMissing + `, min(event_id) FILTER (WHERE NOT later) AS oldest,
			min(greatest(least(available_at, now() + interval '100 years'), now() - interval '100 years')) AS due
		FROM (SELECT event_id, available_at, error_class, ` + sqlDelayed + ` AS later FROM outbox_deliveries
			WHERE state = 'retry' AND destination BETWEEN w.name AND w.name ORDER BY destination, available_at LIMIT $2) AS r) AS d`

	// Dead letters are not read: a dead letter that blocks its aggregate has parked rows.
	sqlBacklogBlocked = `SELECT w.name, d.looked, d.n
	FROM unnest($1::text[]) AS w(name) CROSS JOIN LATERAL (
		SELECT count(*) AS looked, count(DISTINCT ordering_key) AS n
		FROM (SELECT ordering_key FROM outbox_deliveries
			WHERE destination BETWEEN w.name AND w.name AND ordering_key IS NOT NULL AND state IN ('retry', 'parked')
				ORDER BY destination, ordering_key, event_id LIMIT $2) AS k) AS d`
)

func (r *backlogReader) readBlocked(ctx context.Context, tx pgx.Tx) error {
	return each(ctx, tx, func(row pgx.CollectableRow) error {
		var name string
		var looked, n int
		err := row.Scan(&name, &looked, &n)
		r.destination(name).Blocked = observe.Count{N: n, More: looked > r.options.Limit}
		return err
	}, sqlBacklogBlocked, r.known(), r.options.Limit+1)
}
