package bench

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// besidePlain compares the drain of a table with partitions and of a plain one.
func (d *drain) besidePlain(ctx context.Context) (DrainResult, error) {
	if err := d.openSink(ctx); err != nil {
		return DrainResult{}, err
	}
	plain, err := d.measure(ctx, "plain", d.load(0), d.relay)
	if err != nil {
		return DrainResult{}, fmt.Errorf("drain of a plain table: %w", err)
	}
	l := d.load(0)
	l.partitions = d.want.Partitions
	parts, err := d.measure(ctx, "partitions", l, d.relay)
	if err != nil {
		return DrainResult{}, fmt.Errorf("drain of a table with partitions: %w", err)
	}
	parts.read = nil // it is compared with the plain table
	r := d.result(parts, plain)
	r.PlainPerSecond, r.SQLPerSecond = r.SQLPerSecond, 0
	d.explain()
	d.columns([]string{strconv.Itoa(l.partitions) + " partitions", "plain table"}, parts, plain)
	d.printf("\nratio=%.3f lost=%d duplicates=%d; memory is %s\n", r.Ratio, r.Lost, r.Duplicates, parts.rssHow)
	return r, nil
}

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
