package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/deliveries"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// WaitCount counts waiting events or deliveries with the same state, destination and event type.
type WaitCount struct {
	// State is "fresh" for events, the state of deliveries ("retry", "running", "parked", "unrouted" or "dead"), or
	// "position" for a destination of a stream.
	State string
	// Destination is empty if it is not decided yet.
	Destination string
	// EventType is "*" for a position, whose Count is its lag.
	EventType string
	Count     int
	// More reports that counting stopped at Count, and more may exist.
	More bool
}

// CountWaiting counts the backlog, by index and without locks. It reads at most limit rows, at least 1, of fresh
// events, of leases, and of each destination and state. The fresh events of a stream are those that at least one
// position has not passed: other destinations may have received them. The connection must come from a [Connector],
// which pins its plans.
func CountWaiting(ctx context.Context, conn outboxsql.DB, limit int) ([]WaitCount, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, RoundTripTimeout, errNoAnswer)
	defer cancel()

	var mode outboxsql.Mode
	if err := conn.QueryRow(ctx, `SELECT mode FROM outbox_mode WHERE one`).Scan(&mode); err != nil {
		return nil, fmt.Errorf("count the backlog: %w", err)
	}

	fresh := sqlWaitFresh
	if mode == outboxsql.ModeStream {
		fresh = sqlWaitStream
	}

	var all []WaitCount
	for _, sql := range []string{fresh, sqlWaitRetry, sqlWaitParked, sqlWaitRunning, sqlWaitUnrouted, sqlWaitDead} {
		rows, err := conn.Query(ctx, sql, limit)
		if err != nil {
			return nil, fmt.Errorf("count the backlog: %w", err)
		}

		some, err := pgx.CollectRows(rows, pgx.RowToStructByPos[WaitCount])
		if err != nil {
			return nil, fmt.Errorf("count the backlog: %w", err)
		}

		all = append(all, some...)
	}

	if mode != outboxsql.ModeStream {
		return all, nil
	}

	positions, err := countPositions(ctx, conn)
	if err != nil {
		return nil, fmt.Errorf("count the backlog: %w", err)
	}

	return append(all, positions...), nil
}

// countPositions returns the lag of each destination's position.
func countPositions(ctx context.Context, conn outboxsql.DB) (all []WaitCount, err error) {
	var partitioned bool
	err = conn.QueryRow(ctx, `SELECT relkind = 'p' FROM pg_class WHERE oid = 'outbox_events'::regclass`).Scan(&partitioned)
	if err != nil {
		return nil, err
	}

	positions, err := listPositions(ctx, conn, partitioned)
	for _, p := range positions {
		if p.Destination != "" {
			all = append(all, WaitCount{State: "position", Destination: p.Destination, EventType: "*", Count: int(p.Lag)})
		}
	}

	return all, err
}

// Each query skips from destination to destination in an index, and then reads the first rows of each. The sum over a
// group shows whether its limit was reached. The queries use BETWEEN instead of equality, as in backlog_sql.go:
// otherwise the planner reads all of the primary key.
const (
	sqlWaitFresh = `SELECT 'fresh', '', event_type, count(*)::int, sum(count(*)) OVER () >= $1
		FROM (SELECT event_type FROM outbox_events WHERE state = 'fresh' ORDER BY id LIMIT $1) AS e GROUP BY event_type`

	// Without positions, all begin where the table became a stream.
	sqlWaitStream = `WITH p AS MATERIALIZED (
			SELECT head, open FROM outbox_positions
			UNION ALL SELECT origin_head, origin_open FROM outbox_mode WHERE NOT EXISTS (SELECT FROM outbox_positions))
		SELECT 'fresh', '', event_type, count(*)::int, sum(count(*)) OVER () >= $1
		FROM (SELECT event_type FROM (
				(SELECT o.* FROM (SELECT unnest(range_agg(r)) AS r FROM p, unnest(p.open) AS r) AS g CROSS JOIN LATERAL (
					SELECT id, event_type FROM outbox_events WHERE id >= lower(g.r) AND id < upper(g.r) ORDER BY id LIMIT $1) AS o LIMIT $1)
				UNION
				(SELECT id, event_type FROM outbox_events WHERE id > (SELECT min(head) FROM p) ORDER BY id LIMIT $1)
			) AS e ORDER BY id LIMIT $1) AS f GROUP BY event_type`

	sqlWaitRetry = `WITH RECURSIVE d(name) AS (
			(SELECT destination FROM outbox_deliveries WHERE state = 'retry' ORDER BY destination LIMIT 1)
			UNION ALL
			SELECT (SELECT destination FROM outbox_deliveries WHERE state = 'retry' AND destination > d.name ORDER BY destination LIMIT 1)
			FROM d WHERE d.name IS NOT NULL)
		SELECT 'retry', d.name, w.event_type, count(*)::int, sum(count(*)) OVER (PARTITION BY d.name) >= $1
		FROM d CROSS JOIN LATERAL (SELECT event_type FROM outbox_deliveries
			WHERE state = 'retry' AND destination BETWEEN d.name AND d.name ORDER BY destination, available_at LIMIT $1) AS w
		GROUP BY d.name, w.event_type`

	// Rows to retry with a key are read too, and count towards the limit.
	sqlWaitParked = `WITH RECURSIVE d(name) AS (
			(SELECT destination FROM outbox_deliveries WHERE ordering_key IS NOT NULL AND state IN ('retry', 'parked')
				ORDER BY destination LIMIT 1)
			UNION ALL
			SELECT (SELECT destination FROM outbox_deliveries
				WHERE ordering_key IS NOT NULL AND state IN ('retry', 'parked') AND destination > d.name ORDER BY destination LIMIT 1)
			FROM d WHERE d.name IS NOT NULL)
		SELECT * FROM (
			SELECT w.state, d.name, w.event_type, count(*)::int, sum(count(*)) OVER (PARTITION BY d.name) >= $1
			FROM d CROSS JOIN LATERAL (SELECT state, event_type FROM outbox_deliveries
				WHERE ordering_key IS NOT NULL AND state IN ('retry', 'parked') AND destination BETWEEN d.name AND d.name
					ORDER BY destination, ordering_key, event_id LIMIT $1) AS w
			GROUP BY d.name, w.state, w.event_type) AS g WHERE g.state = 'parked'`

	sqlWaitRunning = `SELECT 'running', destination, event_type, count(*)::int, sum(count(*)) OVER () >= $1
		FROM (SELECT destination, event_type FROM outbox_deliveries WHERE state = 'running' ORDER BY lease_owner LIMIT $1) AS w
		GROUP BY destination, event_type`

	sqlWaitUnrouted = deliveries.SQLUnroutedTypes + `SELECT 'unrouted', '', t.type, count(*)::int, count(*) >= $1
		FROM t CROSS JOIN LATERAL (SELECT FROM outbox_deliveries
			WHERE state = 'unrouted' AND event_type BETWEEN t.type AND t.type ORDER BY event_type LIMIT $1) AS w
		GROUP BY t.type`

	sqlWaitDead = `WITH RECURSIVE d(name) AS (
			(SELECT destination FROM outbox_deliveries WHERE state = 'dead' ORDER BY destination LIMIT 1)
			UNION ALL
			SELECT (SELECT destination FROM outbox_deliveries WHERE state = 'dead' AND destination > d.name ORDER BY destination LIMIT 1)
			FROM d WHERE d.name IS NOT NULL)
		SELECT 'dead', d.name, w.event_type, count(*)::int, sum(count(*)) OVER (PARTITION BY d.name) >= $1
		FROM d CROSS JOIN LATERAL (SELECT event_type FROM outbox_deliveries
			WHERE state = 'dead' AND destination BETWEEN d.name AND d.name ORDER BY destination, event_id LIMIT $1) AS w
		GROUP BY d.name, w.event_type`
)
