package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// blockedParked is the number of later events of each blocked aggregate that are stored, in addition to the failed one,
// before the backlog is inserted.
const blockedParked = 2

// load describes a backlog. The ids begin with 1: stored events first, then fresh ones.
type load struct {
	events  int // to be delivered
	payload int // bytes of each
	routes  int // event types and destinations
	keys    int // aggregates that the events belong to; 0: events have no aggregate
	blocked int // further aggregates, whose first event has failed
	fresh   int // fresh events of blocked aggregates, at most as many as events

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

// before is the highest id before the backlog.
func (l load) before() int { return l.ahead + l.stored() }

// held is the number of events that may not be delivered.
func (l load) held() int { return l.before() + l.fresh }

// total is the highest id.
func (l load) total() int { return l.held() + l.events + l.urgent }

// sqlShare is how many of the first i fresh events may not be delivered. They are spread evenly, and the last event is
// not one of them: the relay has read all of them when it delivers the last event.
const sqlShare = `((i * $fresh + $half) / $backlog)`

func (l load) half() int64 { return int64(l.events+l.fresh) / 2 }

// holds reports whether an event may not be delivered.
func (l load) holds(id int64) bool {
	i, all := id-int64(l.before()), int64(l.events+l.fresh)
	share := func(i int64) int64 { return (i*int64(l.fresh) + l.half()) / all }
	return i <= 0 || share(i) > share(i-1)
}

// freeAggregate is the prefix of aggregate ids whose events are to be delivered; a
// number follows.
const freeAggregate = "free-"

// sqlFreshEvents inserts the backlog. An aggregate has one type, and so one destination;
// its events are spread at random, but equally in every run.
const sqlFreshEvents = `INSERT INTO $table (id, event_type, aggregate_type, aggregate_id, payload)
SELECT $before + i, $type || '.' || coalesce(blocked, free, i) % $routes,
	CASE WHEN coalesce(blocked, free) IS NOT NULL THEN $aggregate END,
	coalesce('blocked-' || blocked, '` + freeAggregate + `' || free), $payload::json
FROM generate_series(1, $backlog::bigint) AS i
CROSS JOIN LATERAL (SELECT
	CASE WHEN ` + sqlShare + ` > (((i - 1) * $fresh + $half) / $backlog) THEN ` + sqlShare + ` % greatest($blocked, 1) END AS blocked,
	CASE WHEN $keys > 0 THEN abs(hashint8extended(i, 1) % greatest($keys, 1)) END AS free) AS key`

// sqlBlocked inserts the stored events of each blocked aggregate: one that has failed once and is due again in a day, and
// the later events that wait for it.
const sqlBlocked = `WITH event AS (
	INSERT INTO $table (id, event_type, aggregate_type, aggregate_id, payload)
	SELECT $ahead + i, $type || '.' || i % $blocked % $routes, $aggregate, 'blocked-' || i % $blocked, $payload::json
	FROM generate_series(1, $stored::bigint) AS i
	RETURNING id, event_type, aggregate_type, aggregate_id)
INSERT INTO $deliveries (event_id, destination, event_type, state, attempts, available_at, ordering_key, error_class, last_error)
SELECT id, $sink || (id - $ahead) % $blocked % $routes, event_type, CASE WHEN first THEN 'retry' ELSE 'parked' END,
	first::int, CASE WHEN first THEN now() + interval '1 day' ELSE now() END,
	aggregate_type || '/' || aggregate_id, CASE WHEN first THEN 'event' END, CASE WHEN first THEN 'refused by the bench' END
FROM (SELECT *, id <= $ahead + $blocked AS first FROM event) AS event`

// fill replaces the placeholders of a statement by the numbers and names of a load. All values come from the bench, so it
// quotes none.
func (l load) fill(schema, statement string) string {
	n := strconv.Itoa
	return strings.NewReplacer(
		"$table", table(schema), "$deliveries", deliveries(schema), "$aggregate", "'bench'", "$type", "'"+eventType+"'", "$sink", "'"+sinkName+"'",
		"$payload", "'"+payload(l.payload)+"'", "$backlog", n(l.events+l.fresh), "$half", strconv.FormatInt(l.half(), 10),
		"$stored", n(l.stored()), "$before", n(l.before()), "$ahead", n(l.ahead), "$blocked", n(l.blocked), "$fresh", n(l.fresh), "$keys", n(l.keys), "$routes", n(l.routes), "$urgent", n(l.urgent), "$total", n(l.total()), "$name", "'"+table(schema)+"'",
	).Replace(statement)
}

// sightings returns a record that expects exactly the events of a load that may be delivered.
func (l load) sightings() *sightings {
	s := newSightings(l.total())
	if l.held() > 0 {
		s.want, s.holds = int64(l.events), l.holds
	}
	if l.keys > 0 {
		s.last = make([]atomic.Int64, l.keys)
	}
	if l.urgent > 0 {
		s.urgentFrom, s.wantUrgent = int64(l.total()-l.urgent)+1, int64(l.urgent)
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
	if schema, err = d.tables(ctx, name, l); err != nil {
		return "", err
	}
	return schema, d.insert(ctx, schema, l)
}

// tables creates the tables of a backlog.
func (d *drain) tables(ctx context.Context, name string, l load) (schema string, err error) {
	if schema, err = d.migrate(ctx, name, outboxsql.NotifyAuto); err != nil {
		return "", err
	}
	quiet := "ALTER TABLE $table SET (autovacuum_enabled = off)"
	if l.partitions > 0 {
		if quiet, err = d.partition(ctx, schema, l.partitions); err != nil {
			return "", err
		}
	}
	for _, statement := range []string{quiet, "ALTER TABLE $deliveries SET (autovacuum_enabled = off)"} {
		if _, err := d.pool.Exec(ctx, l.fill(schema, statement)); err != nil {
			return "", fmt.Errorf("make the backlog: %w", err)
		}
	}
	if l.mode == outboxsql.ModeStream {
		if err := d.makeStream(ctx, schema, l.stored()); err != nil {
			return "", err
		}
	}
	return schema, nil
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
		if _, err := d.pool.Exec(ctx, l.fill(schema, statement)); err != nil {
			return fmt.Errorf("make the backlog: %w", err)
		}
	}
	return nil
}
