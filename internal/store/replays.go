package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/observe"
)

// sqlReplays returns the query for replays: the running ones, one, or the newest ones.
func sqlReplays(partitioned bool, which string) string {
	used := sqlUsedPlain
	if partitioned {
		used = sqlUsedPartitioned
	}

	return `WITH l AS MATERIALIZED (SELECT outbox_last_id() AS last), used AS MATERIALIZED (` + used + `)
	SELECT r.id, r.destination, r.from_id, r.to_id, r.patterns, r.rate, r.number, r.state, r.head,
		CASE WHEN r.state = 'running' THEN (SELECT coalesce(sum(upper(s) - lower(s)), 0)
			FROM unnest(` + idset.SQLMissing("r.head", "r.open", "r.to_id") + ` * used.ids) AS s)::bigint ELSE 0 END,
		r.delivered, r.failed, r.skipped, ` + idset.SQLLowest("r.head", "r.open") + `, r.created_by, r.reason, r.created_at,
			r.updated_at, r.finished_at
	FROM outbox_replays AS r CROSS JOIN used ` + which
}

// ReplaysOf selects the replays that [ListReplays] returns.
type ReplaysOf string

// These are the selections.
const (
	ReplaysRunning ReplaysOf = `WHERE r.state = 'running' ORDER BY r.destination LIMIT $1`
	ReplaysNewest  ReplaysOf = `ORDER BY r.id DESC LIMIT $1`
	ReplayByID     ReplaysOf = `WHERE r.id = $1`
)

// ListReplays returns at most n replays of a stream, or the one with the id n. It does not set HoldsBack. The
// search_path must lead to the schema.
func ListReplays(ctx context.Context, tx pgx.Tx, schema string, which ReplaysOf, n int64) ([]observe.Replay, error) {
	partitioned, err := pgschema.Partitioned(ctx, tx.Conn(), schema)
	if err != nil {
		return nil, err
	}
	return listReplays(ctx, tx, partitioned, which, n)
}

func listReplays(ctx context.Context, q lister, partitioned bool, which ReplaysOf, n int64) ([]observe.Replay, error) {
	rows, err := q.Query(ctx, sqlReplays(partitioned, string(which)), n)
	if err != nil {
		return nil, err
	}

	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r observe.Replay, err error) {
		err = row.Scan(&r.ID, &r.Destination, &r.From, &r.To, &r.Types, &r.Rate, &r.Number, &r.State, &r.Head, &r.Remaining,
			&r.Delivered, &r.Failed, &r.Skipped, &r.Lowest, &r.CreatedBy, &r.Reason, &r.CreatedAt, &r.UpdatedAt, &r.FinishedAt)
		return r, err
	})
}
