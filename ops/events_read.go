package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/routing"
	"github.com/notifyd/notifyd/internal/wire"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// clamped is a time that fits into a time.Time and into JSON: infinity does not.
func clamped(column string) string {
	return `least(greatest(` + column + `, '0001-01-01 00:00+00'), '9999-12-31 00:00+00')`
}

// clampedOrNull is clamped, of a column that may be NULL.
func clampedOrNull(column string) string {
	return `CASE WHEN ` + column + ` IS NOT NULL THEN ` + clamped(column) + ` END`
}

// named returns the rows of a statement that reads names of events. sql returns its text with a function that returns the
// expression for a name. If a name cannot be converted to the encoding of the client, all names are escaped to ASCII.
func named[T any](
	ctx context.Context, tx pgx.Tx, sql func(name func(column string) string) string, scan pgx.RowToFunc[T], args ...any,
) (all []T, err error) {
	read := func(tx pgx.Tx, limit int) error {
		text := sql(func(column string) string { return wire.Name(column, limit) })
		rows, err := tx.Query(ctx, text, args...)
		if err == nil {
			all, err = pgx.CollectRows(rows, scan)
		}
		return err
	}

	if tx.Conn().PgConn().ParameterStatus("server_encoding") == "UTF8" {
		return all, read(tx, 0)
	}

	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return read(tx, 0) })
	if wire.IsUnreadable(err) {
		err = read(tx, wire.Escaped)
	}

	return all, err
}

func columns(name func(column string) string) string {
	return `id, ` + name("event_type") + `, coalesce(` + name("aggregate_type") + `, ''), ` +
		`coalesce(` + name("aggregate_id") + `, ''), coalesce(` + name("idempotency_key") + `, ''), state, ` +
		clamped("created_at") + `, ` + clampedOrNull("available_at") + `, ` + clampedOrNull("processed_at") + `, ` + pgschema.Hash("")
}

func scanRaw(row pgx.CollectableRow) (r raw, err error) {
	err = row.Scan(&r.ID, &r.Type, &r.AggregateType, &r.AggregateID, &r.IdempotencyKey, &r.mark,
		&r.CreatedAt, &r.AvailableAt, &r.ProcessedAt, &r.hash)
	return r, err
}

// byID reads events, the newest first. The range prunes partitions: = ANY does not.
func (s *Client) byID(ctx context.Context, tx pgx.Tx, wanted []int64) ([]raw, error) {
	if len(wanted) == 0 {
		return nil, nil
	}
	return named(ctx, tx, func(name func(string) string) string {
		return s.sql(`SELECT ` + columns(name) + ` FROM {events} WHERE id = ANY($1::bigint[]) AND id BETWEEN $2 AND $3 ORDER BY id DESC`)
	}, scanRaw, wanted, slices.Min(wanted), slices.Max(wanted))
}

// tablesNow reads the small tables.
func (s *Client) tablesNow(ctx context.Context, tx pgx.Tx) (*tables, error) {
	var mode outboxsql.Mode
	var becoming *string
	err := tx.QueryRow(ctx, s.sql(`SELECT mode, becoming FROM {mode} WHERE one`)).Scan(&mode, &becoming)
	switch refused, isPg := errors.AsType[*pgconn.PgError](err); {
	case isPg && (refused.Code == "42P01" || refused.Code == "3F000"):
		return nil, fmt.Errorf("schema %q has no tables of notifyd: run `notifyd migrate`, or call outboxsql.Migrate: %w",
			s.cfg.Schema, outboxsql.ErrNotMigrated)
	case err != nil:
		return nil, err
	case becoming != nil:
		return nil, ErrChanging
	case mode != outboxsql.ModeStream:
		return &tables{}, nil
	}

	t := &tables{stream: true}
	var rows pgx.Rows
	for sql, into := range map[string]*[]eventPosition{
		`SELECT destination, shard, count(*) OVER (PARTITION BY destination), head,
			open::text, coalesce(last_error, '') FROM {positions} ORDER BY destination, shard`: &t.positions,
		`SELECT destination, shard, shards, head, open, '' FROM (
			SELECT p.destination, w.n - 1 AS shard, jsonb_array_length(s) AS shards, (w.at ->> 'head')::bigint AS head,
				w.at ->> 'open' AS open
			FROM {positions} AS p, jsonb_array_elements(p.former) AS s,
				jsonb_array_elements(s) WITH ORDINALITY AS w(at, n)) AS f`: &t.former,
	} {
		rows, err = tx.Query(ctx, s.sql(sql))
		if err != nil {
			return nil, err
		}

		*into, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (p eventPosition, err error) {
			err = row.Scan(&p.destination, &p.shard, &p.shards, &p.Head, &p.Open, &p.failure)
			return p, err
		})
		if err != nil {
			return nil, err
		}
	}

	// Not the routes that are expected of a destination (since 0): it does not read by them yet.
	rows, err = tx.Query(ctx, s.sql(`SELECT `+routing.Columns+`, past IS NOT DISTINCT FROM 'skipped'
		FROM {routes} WHERE since > 0 ORDER BY destination, since`))
	if err != nil {
		return nil, err
	}

	t.ranges, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (p routeRange, err error) {
		err = row.Scan(append(p.Fields(), &p.skipped)...)
		return p, err
	})

	return t, err
}

// sqlRows reads the deliveries of events. The comparison of rows finds the first delivery of a line,
// waiting or dead, by the indexes of lines: with equal columns the planner may prefer the primary key, all of it.
const sqlRows = `SELECT d.event_id, %s, d.destination, d.state, d.attempts, d.replays, coalesce(d.error_class, ''),
	coalesce(d.last_error, ''),
	CASE d.state WHEN 'dead' THEN coalesce(d.error_fingerprint, '') ELSE '' END,
	nullif(ARRAY(SELECT l ->> 'destination' FROM jsonb_array_elements(d.dead_letters) WITH ORDINALITY AS r(l, n)
		WHERE l ->> 'destination' IS NOT NULL ORDER BY n), '{}'), %s, %s, line.event_id, line.state
	FROM {deliveries} AS d LEFT JOIN LATERAL (SELECT * FROM ((SELECT o.event_id, o.state FROM {deliveries} AS o
		WHERE d.state = 'parked' AND o.ordering_key IS NOT NULL AND o.state IN ('retry', 'parked')
			AND (o.destination, o.ordering_key, o.event_id) >= (d.destination, d.ordering_key, -9223372036854775808)
		ORDER BY o.destination, o.ordering_key, o.event_id LIMIT 1)
	UNION ALL (SELECT event_id, state FROM (SELECT o.event_id, o.state, o.destination, o.ordering_key FROM {deliveries} AS o
		WHERE d.state = 'parked' AND o.ordering_key IS NOT NULL AND o.state = 'dead'
			AND (o.destination, o.ordering_key, o.event_id) >= (d.destination, d.ordering_key, -9223372036854775808)
		ORDER BY o.destination, o.ordering_key, o.event_id LIMIT 1) AS n
			WHERE n.destination = d.destination AND n.ordering_key = d.ordering_key)) AS f
	ORDER BY event_id LIMIT 1) AS line ON true
	WHERE d.event_id = ANY($1::bigint[])`

// sqlActs reads the last action on each delivery, or its acknowledgement.
const sqlActs = `SELECT DISTINCT ON (event_id, destination) event_id, destination, action, actor, at
	FROM {audit} WHERE event_id = ANY($1::bigint[]) AND action IN ('replay', 'discard', 'delivered') AND destination IS NOT NULL
	ORDER BY event_id, destination, id DESC`

// outcomes reads the other tables about the events, and derives the state of each event.
func (s *Client) outcomes(ctx context.Context, tx pgx.Tx, t *tables, found []raw) ([]Event, error) {
	wanted := make([]int64, len(found))
	byID := make(map[int64]*raw, len(found))
	for i := range found {
		wanted[i] = found[i].ID
		byID[found[i].ID] = &found[i]
	}

	type stored struct {
		row

		id        int64
		eventType string
	}

	rows, err := named(ctx, tx, func(name func(string) string) string {
		return s.sql(fmt.Sprintf(sqlRows, name("d.event_type"), clamped("d.available_at"), clamped("d.updated_at")))
	}, func(scanned pgx.CollectableRow) (r stored, err error) {
		var first *int64
		var state *State
		err = scanned.Scan(&r.id, &r.eventType, &r.Name, &r.State, &r.Attempts, &r.Replays, &r.Class, &r.Error,
			&r.Fingerprint, &r.Reports, &r.next, &r.at, &first, &state)
		if err != nil || first == nil || state == nil {
			return r, err
		}

		if *first != r.id {
			r.Behind = &Behind{*first, *state}
			if *state == "retry" {
				r.Behind.State = Waiting
			}
		}

		return r, err
	}, wanted)
	if err != nil {
		return nil, err
	}

	for i := range rows {
		e := byID[rows[i].id]
		if e.Gone {
			e.Type = rows[i].eventType
		}
		e.rows = append(e.rows, rows[i].row)
	}

	acts, err := tx.Query(ctx, s.sql(sqlActs), wanted)
	if err != nil {
		return nil, err
	}

	var id int64
	var a act
	_, err = pgx.ForEachRow(acts, []any{&id, &a.destination, &a.action, &a.actor, &a.at}, func() error {
		byID[id].acts = append(byID[id].acts, a)
		return nil
	})
	if err != nil {
		return nil, err
	}

	all := make([]Event, len(found))
	for i := range found {
		all[i] = t.derive(&found[i])
	}

	return all, nil
}
