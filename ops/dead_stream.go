package ops

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/idset"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// modeSpace is 'ntfx' in ASCII: the upper half of the lock that keeps the mode from changing. The
// lower half is the oid of outbox_mode.
const modeSpace = 0x6e746678

// mode returns whether the table is a queue or a stream.
func (s *Client) mode(ctx context.Context, tx pgx.Tx) (mode outboxsql.Mode, err error) {
	err = tx.QueryRow(ctx, s.sql(`SELECT mode FROM {mode} WHERE one`)).Scan(&mode)
	return mode, err
}

// holdMode is mode, and keeps the mode from changing until the transaction ends.
func (s *Client) holdMode(ctx context.Context, tx pgx.Tx) (outboxsql.Mode, error) {
	table := pgx.Identifier{s.cfg.Schema, "outbox_mode"}.Sanitize()
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock_shared($1::bigint << 32 | to_regclass($2)::oid::bigint)`,
		int64(modeSpace), table)
	if err != nil {
		return "", err
	}
	return s.mode(ctx, tx) // with a snapshot that is not older than the lock
}

// inFlight returns the destinations of a stream that are delivering an event, as far as their
// positions tell. A destination that has not reached it yet will read the row as it is then.
func (s *Client) inFlight(ctx context.Context, tx pgx.Tx, id int64) ([]string, error) {
	rows, err := tx.Query(ctx, s.sql(`SELECT DISTINCT destination FROM {positions}
		WHERE destination <> '' AND open @> $1::bigint ORDER BY destination`), id)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// forget deletes the events of a stream that neither a destination nor a replay still needs.
func (s *Client) forget(ctx context.Context, tx pgx.Tx, ids []int64) error {
	return s.deleteEvents(ctx, tx, `DELETE FROM {events} AS e WHERE e.id = ANY($1::bigint[])
		AND NOT EXISTS (SELECT FROM {deliveries} AS d WHERE d.event_id = e.id)
		AND EXISTS (SELECT FROM {positions}) AND NOT EXISTS (SELECT FROM {positions} AS p WHERE NOT `+idset.SQLHas("p.head", "p.open", "e.id")+`)
		AND NOT EXISTS (SELECT FROM {replays} AS r
			WHERE r.state = 'running' AND e.id <= r.to_id AND NOT `+idset.SQLHas("r.head", "r.open", "e.id")+`)`, ids)
}
