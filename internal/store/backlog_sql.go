package store

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/limit"
	"github.com/notifyd/notifyd/observe"
)

const (
	// backlogStatement bounds each query: even a limited query may take long after a long run of dead index entries,
	// which an old snapshot preserves.
	backlogStatement = 5 * time.Second
	// backlogNames bounds the separately listed names and types.
	backlogNames = 1000
	// errorsLooked bounds the deliveries whose last error is read, and deadLooked the grouped dead letters, both per
	// destination.
	errorsLooked, deadLooked = 100, 1000
)

// sqlSince is the time from which an event waits. Neither infinity nor the ends of the calendar fit into a time.Time.
const sqlSince = `least(greatest(created_at, available_at, now() - interval '100 years'), now() + interval '100 years')`

// Each query reads one index, in its order, up to its limit. The queries use BETWEEN instead of equality. With
// equality the planner ignores the order by that column, prefers the primary key, which is in table order, and reads
// all of it.
const (
	sqlBacklogTypes = `SELECT event_type, count(*), min(id) FILTER (WHERE available_at <= now() OR available_at IS NULL),
		min(` + sqlSince + `) FILTER (WHERE available_at <= now() OR available_at IS NULL)
	FROM (SELECT id, event_type, created_at, available_at FROM outbox_events
		WHERE state = 'fresh' AND id > $1 ORDER BY id LIMIT $2) AS e
	GROUP BY event_type`

	// sqlBacklogNames skips from name to name in three indexes; the names of running deliveries come with
	// sqlBacklogRunning.
	sqlBacklogNames = `WITH RECURSIVE retry(name) AS (
			(SELECT destination FROM outbox_deliveries WHERE state = 'retry' ORDER BY destination LIMIT 1)
			UNION ALL SELECT (SELECT destination FROM outbox_deliveries WHERE state = 'retry' AND destination > r.name
				ORDER BY destination LIMIT 1)
			FROM retry AS r WHERE r.name IS NOT NULL),
		dead(name) AS (
			(SELECT destination FROM outbox_deliveries WHERE state = 'dead' ORDER BY destination LIMIT 1)
			UNION ALL SELECT (SELECT destination FROM outbox_deliveries WHERE state = 'dead' AND destination > r.name
				ORDER BY destination LIMIT 1)
			FROM dead AS r WHERE r.name IS NOT NULL),
		keyed(name) AS (
			(SELECT destination FROM outbox_deliveries WHERE ordering_key IS NOT NULL AND state IN ('retry', 'parked')
				ORDER BY destination LIMIT 1)
			UNION ALL SELECT (SELECT destination FROM outbox_deliveries
				WHERE ordering_key IS NOT NULL AND state IN ('retry', 'parked') AND destination > r.name ORDER BY destination LIMIT 1)
			FROM keyed AS r WHERE r.name IS NOT NULL)
		SELECT name FROM (
			(SELECT name FROM retry LIMIT $1) UNION (SELECT name FROM dead LIMIT $1) UNION (SELECT name FROM keyed LIMIT $1)) AS all_names
		WHERE name IS NOT NULL`

	sqlBacklogRunning = `SELECT destination, count(*), min(event_id)
	FROM (SELECT destination, event_id FROM outbox_deliveries WHERE state = 'running' ORDER BY lease_owner LIMIT $1) AS d
	GROUP BY destination`

	sqlBacklogRetry = `SELECT w.name, d.n, d.missing, d.oldest, d.due
	FROM unnest($1::text[]) AS w(name) CROSS JOIN LATERAL (
		SELECT count(*) AS n, ` + sqlMissing + `, min(event_id) AS oldest,
			min(greatest(least(available_at, now() + interval '100 years'), now() - interval '100 years')) AS due
		FROM (SELECT event_id, available_at, error_class FROM outbox_deliveries
			WHERE state = 'retry' AND destination BETWEEN w.name AND w.name ORDER BY destination, available_at LIMIT $2) AS r) AS d`

	// No index has only parked rows: sqlBacklogParked searches the waiting rows of a destination that have a key.
	sqlBacklogParked = `SELECT w.name, d.looked, d.n, d.oldest
	FROM unnest($1::text[]) AS w(name) CROSS JOIN LATERAL (
		SELECT count(*) AS looked, count(*) FILTER (WHERE state = 'parked') AS n, min(event_id) FILTER (WHERE state = 'parked') AS oldest
		FROM (SELECT state, event_id FROM outbox_deliveries
			WHERE destination BETWEEN w.name AND w.name AND ordering_key IS NOT NULL AND state IN ('retry', 'parked')
				ORDER BY destination, ordering_key, event_id LIMIT $2) AS k) AS d`

	sqlBacklogDead = `SELECT w.name, d.n
	FROM unnest($1::text[]) AS w(name) CROSS JOIN LATERAL (
		SELECT count(*) AS n FROM (SELECT FROM outbox_deliveries
			WHERE state = 'dead' AND destination BETWEEN w.name AND w.name ORDER BY destination, event_id LIMIT $2) AS r) AS d`

	// A newly failed delivery is due after deliveries that were only held back, so the newest error is at either end.
	// A delivery that waits for its rate limit has not failed, and must not hide a failed one.
	sqlBacklogErrors = `SELECT w.name, d.event_id, d.event_type, d.attempts, coalesce(d.error_class, ''), d.last_error, d.updated_at
	FROM unnest($1::text[]) AS w(name) CROSS JOIN LATERAL (
		SELECT * FROM ((SELECT event_id, event_type, attempts, error_class, last_error, updated_at FROM outbox_deliveries
				WHERE state = 'retry' AND destination BETWEEN w.name AND w.name ORDER BY destination, available_at LIMIT $2)
			UNION ALL (SELECT event_id, event_type, attempts, error_class, last_error, updated_at FROM outbox_deliveries
				WHERE state = 'retry' AND destination BETWEEN w.name AND w.name ORDER BY destination DESC, available_at DESC LIMIT $2)) AS r
		WHERE last_error <> '` + limit.Waits + `' ORDER BY updated_at DESC LIMIT 1) AS d`

	// A destination that keeps a copy of its position has no rows while it is down.
	sqlBacklogPositionErrors = `SELECT DISTINCT ON (destination) destination, last_error, failed_at FROM outbox_positions
		WHERE last_error IS NOT NULL ORDER BY destination, failed_at DESC`

	sqlBacklogGroups = `SELECT w.name, d.n, d.looked, d.class, d.newest[1], d.event_id, d.types[1], d.at
	FROM unnest($1::text[]) AS w(name) CROSS JOIN LATERAL (
		SELECT count(*) AS n, sum(count(*)) OVER () AS looked, coalesce(error_class, '') AS class,
			array_agg(coalesce(last_error, '') ORDER BY event_id DESC) AS newest, max(event_id) AS event_id,
			array_agg(event_type ORDER BY event_id DESC) AS types, max(updated_at) AS at
		FROM (SELECT event_id, event_type, error_class, last_error, updated_at FROM outbox_deliveries
			WHERE state = 'dead' AND destination BETWEEN w.name AND w.name ORDER BY destination DESC, event_id DESC LIMIT $2) AS r
		GROUP BY error_class, regexp_replace(regexp_replace(left(last_error, 500),
			'[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}', '#', 'g'), '[0-9]+', '#', 'g')) AS d`

	sqlBacklogUnrouted = deliveries.SQLUnroutedTypes + `SELECT t.type, d.n FROM (SELECT type FROM t LIMIT $1) AS t CROSS JOIN LATERAL (
			SELECT count(*) AS n FROM (SELECT FROM outbox_deliveries
				WHERE state = 'unrouted' AND event_type BETWEEN t.type AND t.type ORDER BY event_type LIMIT $2) AS r) AS d
		WHERE t.type IS NOT NULL`

	sqlBacklogOldest = `SELECT id, ` + sqlSince + ` FROM outbox_events WHERE id = ANY($1::bigint[])`
)

// sqlMissing counts the deliveries whose events no relay has found.
const sqlMissing = `count(*) FILTER (WHERE error_class = '` + engine.ClassMissing + `') AS missing`

// prepare pins the plans: each query has one good plan, by index, and must get it with any statistics.
func (r *backlogReader) prepare(ctx context.Context, tx pgx.Tx) error {
	names := []string{
		"search_path", "statement_timeout", "plan_cache_mode", "enable_seqscan", "enable_bitmapscan", "enable_sort",
		"enable_hashjoin", "enable_mergejoin", "jit",
	}

	values := []string{
		pgx.Identifier{r.options.Schema}.Sanitize(), milliseconds(backlogStatement), "force_generic_plan", "off", "off", "off",
		"off", "off", "off",
	}

	err := tx.QueryRow(ctx, `SELECT now() FROM unnest($1::text[], $2::text[]) AS s(name, value)
		HAVING bool_and(set_config(name, value, true) IS NOT NULL)`, names, values).Scan(&r.result.At)
	if err != nil {
		return err
	}

	mode, err := modeOf(ctx, tx, r.options.Schema)
	r.result.Mode = string(mode)

	return err
}

func (r *backlogReader) readTypes(ctx context.Context, tx pgx.Tx) error {
	after := cmp.Or(r.options.After, math.MinInt64)
	total := 0
	err := each(ctx, tx, func(row pgx.CollectableRow) error {
		var t observe.TypeBacklog
		var id *int64
		var since *time.Time
		if err := row.Scan(&t.EventType, &t.N, &id, &since); err != nil {
			return err
		}
		if id != nil && since != nil {
			t.Oldest = r.waiting(*id, *since)
		}

		total += t.N
		r.result.Types = append(r.result.Types, t)

		return nil
	}, sqlBacklogTypes, after, r.options.Limit+1)

	for i := range r.result.Types {
		r.result.Types[i].More = total > r.options.Limit
	}

	r.result.Fresh = r.count(total)
	byType(r.result.Types)

	return err
}

func byType(types []observe.TypeBacklog) {
	slices.SortFunc(types, func(a, b observe.TypeBacklog) int { return cmp.Compare(a.EventType, b.EventType) })
}

func (r *backlogReader) readNames(ctx context.Context, tx pgx.Tx) error {
	return each(ctx, tx, func(row pgx.CollectableRow) error {
		var name string
		err := row.Scan(&name)
		r.destination(name)
		return err
	}, sqlBacklogNames, backlogNames)
}

func (r *backlogReader) readRunning(ctx context.Context, tx pgx.Tx) error {
	total := 0
	err := each(ctx, tx, func(row pgx.CollectableRow) error {
		var name string
		var n int
		var oldest *int64
		if err := row.Scan(&name, &n, &oldest); err != nil {
			return err
		}

		total += n
		d := r.destination(name)
		d.Running.N = n
		r.remember(d, oldest)

		return nil
	}, sqlBacklogRunning, r.options.Limit+1)

	for _, d := range r.names {
		d.Running.More = d.Running.N > 0 && total > r.options.Limit
	}

	return err
}

func (r *backlogReader) readRetry(ctx context.Context, tx pgx.Tx) error {
	return each(ctx, tx, func(row pgx.CollectableRow) error {
		var name string
		var n, missing int
		var oldest *int64
		var due *time.Time
		if err := row.Scan(&name, &n, &missing, &oldest, &due); err != nil {
			return err
		}

		d := r.destination(name)
		d.Retry = r.count(n)
		d.NextDue = due
		d.Missing = r.count(missing)
		r.remember(d, oldest)

		return nil
	}, sqlBacklogRetry, r.known(), r.options.Limit+1)
}

func (r *backlogReader) readParked(ctx context.Context, tx pgx.Tx) error {
	return each(ctx, tx, func(row pgx.CollectableRow) error {
		var name string
		var looked, n int
		var oldest *int64
		if err := row.Scan(&name, &looked, &n, &oldest); err != nil {
			return err
		}

		d := r.destination(name)
		d.Parked = observe.Count{N: n, More: looked > r.options.Limit}
		r.remember(d, oldest)

		return nil
	}, sqlBacklogParked, r.known(), r.options.Limit+1)
}

func (r *backlogReader) readDead(ctx context.Context, tx pgx.Tx) error {
	return each(ctx, tx, func(row pgx.CollectableRow) error {
		var name string
		var n int
		err := row.Scan(&name, &n)
		r.destination(name).Dead = r.count(n)
		return err
	}, sqlBacklogDead, r.known(), r.options.Limit+1)
}

func (r *backlogReader) readErrors(ctx context.Context, tx pgx.Tx) error {
	return each(ctx, tx, func(row pgx.CollectableRow) error {
		var name string
		var f observe.Failure
		err := row.Scan(&name, &f.EventID, &f.EventType, &f.Attempts, &f.Class, &f.Text, &f.At)
		r.destination(name).LastError = &f
		return err
	}, sqlBacklogErrors, r.known(), errorsLooked)
}

func (r *backlogReader) readPositionErrors(ctx context.Context, tx pgx.Tx) error {
	return each(ctx, tx, func(row pgx.CollectableRow) error {
		var name string
		f := observe.Failure{Class: delivery.ClassDestination.String()}
		err := row.Scan(&name, &f.Text, &f.At)

		d := r.destination(name)
		if d.LastError == nil || d.LastError.At.Before(f.At) {
			d.LastError = &f
		}

		return err
	}, sqlBacklogPositionErrors)
}

func (r *backlogReader) readDeadGroups(ctx context.Context, tx pgx.Tx) error {
	err := each(ctx, tx, func(row pgx.CollectableRow) error {
		var name string
		var g observe.DeadGroup
		var looked int
		err := row.Scan(&name, &g.N, &looked, &g.Class, &g.Error, &g.EventID, &g.EventType, &g.At)
		d := r.destination(name)
		g.More = d.Dead.More || d.Dead.N > looked
		d.DeadLetters = append(d.DeadLetters, g)
		return err
	}, sqlBacklogGroups, r.known(), deadLooked)

	for _, d := range r.names {
		slices.SortFunc(d.DeadLetters, func(a, b observe.DeadGroup) int {
			return cmp.Or(b.N-a.N, cmp.Compare(b.EventID, a.EventID))
		})
	}

	return err
}

func (r *backlogReader) readUnrouted(ctx context.Context, tx pgx.Tx) error {
	err := each(ctx, tx, func(row pgx.CollectableRow) error {
		var t observe.TypeBacklog
		var n int
		err := row.Scan(&t.EventType, &n)
		t.Count = r.count(n)
		r.result.Unrouted = append(r.result.Unrouted, t)
		return err
	}, sqlBacklogUnrouted, r.options.Types+1, r.options.Limit+1)

	byType(r.result.Unrouted)

	r.result.UnroutedMore = len(r.result.Unrouted) > r.options.Types
	if r.result.UnroutedMore {
		r.result.Unrouted = r.result.Unrouted[:r.options.Types]
	}

	return err
}

// remember requests the age of an event for a destination.
func (r *backlogReader) remember(d *observe.DestinationBacklog, id *int64) {
	if id == nil || d.Name == "" {
		return
	}
	if r.oldest == nil {
		r.oldest = make(map[int64][]*observe.DestinationBacklog)
	}

	r.oldest[*id] = append(r.oldest[*id], d)
}

func (r *backlogReader) readOldest(ctx context.Context, tx pgx.Tx) error {
	ids := make([]int64, 0, len(r.oldest))
	for id := range r.oldest {
		ids = append(ids, id)
	}

	return each(ctx, tx, func(row pgx.CollectableRow) error {
		var id int64
		var since time.Time
		err := row.Scan(&id, &since)
		for _, d := range r.oldest[id] {
			d.Oldest = older(d.Oldest, r.waiting(id, since))
		}

		return err
	}, sqlBacklogOldest, ids)
}

// each calls f for every row of a query.
func each(ctx context.Context, tx pgx.Tx, f func(pgx.CollectableRow) error, sql string, args ...any) error {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) { return struct{}{}, f(row) })
	return err
}
