package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// drains measures the drain of a backlog by one worker, and by several.
func (c *compare) drains(ctx context.Context, who contender, column *Column) error {
	for _, workers := range who.workerCounts() {
		at := fmt.Sprintf("%d at work: ", workers)
		err := c.trial(ctx, who, workers, column, at, func(ctx context.Context, t *trial) error { return t.drain(ctx, column, at) })
		if err != nil {
			return err
		}
	}
	return nil
}

// drain times the workers, from their start until they have settled everything and ended. The CPU time of PostgreSQL is
// known only for a private server.
func (t *trial) drain(ctx context.Context, c *Column, at string) (err error) {
	if err := t.fill(ctx); err != nil {
		return err
	}
	var took time.Duration
	spent, err := t.meter(ctx, at+t.who.name, 0, func(ctx context.Context) error {
		began := time.Now()
		err := t.drainAll(ctx)
		took = time.Since(began)
		return err
	})
	if err != nil {
		return err
	}
	c.set(at+"seconds", took.Seconds(), 2)
	if t.DatabaseURL == "" {
		c.set(at+"PostgreSQL, CPU s", spent.cpu.postgres.Seconds(), 2)
	}
	c.set(at+"workers, CPU s", spent.cpu.relay.Seconds(), 2)
	c.set(at+"WAL, MiB", spent.wal/(1<<20), 1)
	return t.leftBehind(ctx, c, at)
}

// drainAll starts the workers, and returns when they have settled everything and ended.
func (t *trial) drainAll(ctx context.Context) (err error) {
	w, err := t.hire(ctx, t.want.Events)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.dismiss()) }()
	return t.settled(ctx, w, int64(t.want.Events))
}

// fill inserts the backlog. Then it vacuums and analyzes all tables, so that no variant meets an autovacuum caused by the
// inserts.
func (t *trial) fill(ctx context.Context) error {
	if _, err := t.look.Exec(ctx, t.who.backlog(), t.want.Events, t.want.Keys, t.addresses(), filling(t.want.Payload)); err != nil {
		return fmt.Errorf("insert the backlog: %w", err)
	}
	t.written = make([]int64, t.want.Keys)
	for key := range t.written {
		t.written[key] = int64((t.want.Events - key + t.want.Keys - 1) / t.want.Keys)
	}
	rows, err := t.look.Query(ctx, `SELECT format('VACUUM (ANALYZE) %s', oid::regclass) FROM pg_class
		WHERE relnamespace = to_regnamespace($1) AND relkind = 'r'`, pgx.Identifier{t.schema}.Sanitize())
	if err != nil {
		return err
	}
	statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, statement := range append(statements, "CHECKPOINT") {
		if _, err := t.look.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// leftBehind counts the updated or deleted rows, and PostgreSQL's estimate of those that vacuum has not removed yet.
func (t *trial) leftBehind(ctx context.Context, c *Column, at string) error {
	dead, err := t.deadRows(ctx, t.schema) // the workers' sessions have reported all changes by then
	if err != nil {
		return err
	}
	var changed int64
	err = t.pool.QueryRow(ctx, `SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = $1`,
		t.schema).Scan(&changed)
	c.set(at+"rows changed", float64(changed), 0)
	c.set(at+"dead rows", float64(dead), 0)
	return err
}
