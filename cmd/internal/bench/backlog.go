package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// blockedParked is the number of later events of each blocked aggregate that are stored, in addition to the failed one,
// before the backlog is inserted.
const blockedParked = 2

// urgentType is the type of the urgent events at the end of a backlog, and the name of their destination.
const urgentType = "urgent"

// load describes a backlog. The ids begin with 1: stored events first, then fresh ones.
type load struct {
	events  int // to be delivered
	payload int // bytes of each
	routes  int // event types and destinations
	keys    int // aggregates that the events belong to; 0: events have no aggregate
	blocked int // further aggregates, whose first event has failed

	urgent   int // further events for a separate destination, after all others
	priority int // of that destination

	partitions int // of the table; 0: a plain table

	mode   outboxsql.Mode // "" is a queue
	ahead  int            // events before all others whose transaction stays open
	copies int            // destinations of each event; 0 is 1
	shards int            // of each destination; 0 is 1
	exact  bool           // deliver exactly once: the position is stored at the destination
}

// stored is the number of events that are stored before the backlog comes up.
func (l load) stored() int { return l.blocked * (1 + blockedParked) }

// held is the number of events that may not be delivered. They come before the backlog.
func (l load) held() int { return l.ahead + l.stored() }

// total is the highest id.
func (l load) total() int { return l.held() + l.events + l.urgent }

// freeAggregate is the prefix of aggregate ids whose events are to be delivered; a
// number follows.
const freeAggregate = "free-"

// sqlFreshEvents inserts the backlog. An aggregate has one type, and so one destination;
// its events are spread at random, but equally in every run.
const sqlFreshEvents = `INSERT INTO $table (id, event_type, aggregate_type, aggregate_id, payload)
SELECT $held + i, $type || '.' || coalesce(key, i) % $routes, CASE WHEN key IS NOT NULL THEN $aggregate END, '` + freeAggregate + `' || key, $payload::json
FROM generate_series(1, $events::bigint) AS i
CROSS JOIN LATERAL (SELECT CASE WHEN $keys > 0 THEN abs(hashint8extended(i, 1) % greatest($keys, 1)) END AS key) AS aggregate`

// sqlUrgent inserts the urgent events.
const sqlUrgent = `INSERT INTO $table (id, event_type, payload)
SELECT $held + $events + i, '` + urgentType + `', $payload::json FROM generate_series(1, $urgent::bigint) AS i`

// sqlBlocked inserts the stored events of each blocked aggregate: one that has failed once and is due again in a day, and
// the later events that wait for it.
const sqlBlocked = `WITH event AS (
	INSERT INTO $table (id, event_type, aggregate_type, aggregate_id, payload)
	SELECT i, $type || '.' || i % $blocked % $routes, $aggregate, 'blocked-' || i % $blocked, $payload::json
	FROM generate_series(1, $stored::bigint) AS i
	RETURNING id, event_type, aggregate_type, aggregate_id)
INSERT INTO $deliveries (event_id, destination, event_type, state, attempts, available_at, ordering_key, error_class, last_error)
SELECT id, $sink || id % $blocked % $routes, event_type, CASE WHEN first THEN 'retry' ELSE 'parked' END,
	first::int, CASE WHEN first THEN now() + interval '1 day' ELSE now() END,
	aggregate_type || '/' || aggregate_id, CASE WHEN first THEN 'event' END, CASE WHEN first THEN 'refused by the bench' END
FROM (SELECT *, id <= $blocked AS first FROM event) AS event`

// fill replaces the placeholders of a statement by the numbers and names of a load. All values come from the bench, so it
// quotes none.
func (l load) fill(schema, statement string) string {
	n := strconv.Itoa
	return strings.NewReplacer(
		"$table", table(schema), "$deliveries", deliveries(schema), "$name", "'"+table(schema)+"'",
		"$aggregate", "'bench'", "$type", "'"+eventType+"'", "$sink", "'"+sinkName+"'", "$payload", "'"+payload(l.payload)+"'",
		"$events", n(l.events), "$stored", n(l.stored()), "$held", n(l.held()), "$blocked", n(l.blocked),
		"$keys", n(l.keys), "$routes", n(l.routes), "$urgent", n(l.urgent), "$total", n(l.total()),
	).Replace(statement)
}

// sightings returns a record that expects exactly the events of a load that may be delivered.
func (l load) sightings() *sightings {
	s := newSightings(l.total())
	s.held = int64(l.held())
	s.want -= s.held
	if l.keys > 0 {
		s.last = make([]atomic.Int64, l.keys)
	}
	if l.urgent > 0 {
		s.urgentFrom = int64(l.total()-l.urgent) + 1
		s.wantUrgent = int64(l.urgent)
	}
	return s
}

// copied returns one sightings per destination of a load.
func (l load) copied() []*sightings {
	all := make([]*sightings, max(1, l.copies))
	for i := range all {
		all[i] = l.sightings()
	}
	return all
}

// backlog creates a table and fills it. The table is never vacuumed or analyzed: an autovacuum in one of two drains would
// distort the comparison.
func (d *drain) backlog(ctx context.Context, name string, l load) (schema string, err error) {
	schema, err = d.tables(ctx, name, l)
	if err != nil {
		return "", err
	}
	return schema, d.insert(ctx, schema, l)
}

// tables creates the tables of a backlog.
func (d *drain) tables(ctx context.Context, name string, l load) (schema string, err error) {
	schema, err = d.migrate(ctx, name, outboxsql.NotifyAuto, outboxsql.ModeQueue)
	if err != nil {
		return "", err
	}
	quiet := "ALTER TABLE $table SET (autovacuum_enabled = off)"
	if l.partitions > 0 {
		quiet, err = d.partition(ctx, schema, l.partitions)
		if err != nil {
			return "", err
		}
	}
	_, err = d.Pool.Exec(ctx, l.fill(schema, quiet+"; ALTER TABLE $deliveries SET (autovacuum_enabled = off)"))
	if err == nil && l.mode == outboxsql.ModeStream {
		err = d.makeStream(ctx, schema, l.stored())
	}
	return schema, err
}

// partition creates n partitions, and returns the statement that turns autovacuum off for them. The backlog is in the
// first one. The others are empty, but every query scans them.
func (d *drain) partition(ctx context.Context, schema string, n int) (quiet string, err error) {
	err = d.Pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		return outboxsql.Partition(ctx, c.Conn(), schema, outboxsql.PartitionOptions{})
	})
	if err != nil {
		return "", err
	}
	if _, err := d.Pool.Exec(ctx, "SELECT "+in(schema, "outbox_partitions_extend")+"(now(), $1)", n-1); err != nil {
		return "", fmt.Errorf("make partitions: %w", err)
	}
	err = d.Pool.QueryRow(ctx, `SELECT string_agg(format('ALTER TABLE %s SET (autovacuum_enabled = off)', inhrelid::regclass), '; ')
		FROM pg_inherits WHERE inhparent = to_regclass($1)`, table(schema)).Scan(&quiet)
	return quiet, err
}

// insert fills the tables of a backlog.
func (d *drain) insert(ctx context.Context, schema string, l load) error {
	var statements []string
	if l.blocked > 0 {
		statements = append(statements, sqlBlocked)
	}
	statements = append(statements, sqlFreshEvents)
	if l.urgent > 0 {
		statements = append(statements, sqlUrgent)
	}
	if err := d.writeAhead(ctx, schema, l); err != nil {
		return err
	}
	// In the same transaction: a running relay must see the ids as if the sequence had assigned them.
	statements = append(statements, "SELECT setval(pg_get_serial_sequence($name, 'id'), $total)")
	for _, statement := range []string{strings.Join(statements, ";\n"), "CHECKPOINT"} {
		if _, err := d.Pool.Exec(ctx, l.fill(schema, statement)); err != nil {
			return fmt.Errorf("make the backlog: %w", err)
		}
	}
	return nil
}
