package bench

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// partition creates n partitions, and returns the statement that turns autovacuum off for them. The backlog is in the
// first one. The others are empty, but every query scans them.
func (d *drain) partition(ctx context.Context, schema string, n int) (quiet string, err error) {
	err = d.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		return outboxsql.Partition(ctx, c.Conn(), schema, outboxsql.PartitionOptions{})
	})
	if err != nil {
		return "", err
	}
	if _, err := d.pool.Exec(ctx, "SELECT "+pgx.Identifier{schema}.Sanitize()+".outbox_partitions_extend(now(), $1)", n-1); err != nil {
		return "", fmt.Errorf("make partitions: %w", err)
	}
	err = d.pool.QueryRow(ctx, `SELECT string_agg(format('ALTER TABLE %s SET (autovacuum_enabled = off)', inhrelid::regclass), '; ')
		FROM pg_inherits WHERE inhparent = to_regclass($1)`, table(schema)).Scan(&quiet)
	return quiet, err
}
