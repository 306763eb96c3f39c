package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/jackc/pgx/v5"
)

// drains measures the drain of a backlog by one worker, and by several.
func (c *compare) drains(ctx context.Context, who contender, r *VariantResult) error {
	for workers := 1; workers <= variantWorkers && (who.most == 0 || workers <= who.most); workers++ {
		d := VariantDrain{Workers: workers}
		counts, err := c.trial(ctx, who, workers, func(ctx context.Context, t *trial) error { return t.drain(ctx, &d) })
		if err != nil {
			return err
		}
		d.Counts = counts
		r.Drains = append(r.Drains, d)
		c.printf("%s, %d at work: drained in %.1f s, %s\n", who.name, workers, d.Seconds, counts)
	}
	return nil
}

// String is for people.
func (t Counts) String() string {
	return fmt.Sprintf("lost=%d duplicates=%d out_of_order=%d", t.Lost, t.Duplicates, t.OutOfOrder)
}

// cell returns the counts for a cell of the table: lost/duplicates/out of order.
func (t Counts) cell() string { return fmt.Sprintf("%d/%d/%d", t.Lost, t.Duplicates, t.OutOfOrder) }

// drain times the workers, from their start until they have settled everything and ended.
func (t *trial) drain(ctx context.Context, d *VariantDrain) (err error) {
	if err := t.fill(ctx); err != nil {
		return err
	}
	debug.FreeOSMemory()
	wal, err := t.walEnd(ctx)
	if err != nil {
		return err
	}
	server, err := t.serverCPU(ctx)
	if err != nil {
		return err
	}
	own, began := ownCPU(), time.Now()
	if err := t.drainAll(ctx); err != nil {
		return err
	}
	took, used := time.Since(began), ownCPU()-own
	after, err := t.serverCPU(ctx)
	if err != nil {
		return err
	}
	bytes, err := t.walSince(ctx, wal)
	if err != nil {
		return err
	}
	d.Seconds, d.WorkerCPU, d.PostgresCPU = round(took.Seconds(), 2), round(used.Seconds(), 2), round((after-server).Seconds(), 2)
	d.WALBytes = bytes
	return t.leftBehind(ctx, d)
}

// drainAll starts the workers, and returns when they have settled everything and ended.
func (t *trial) drainAll(ctx context.Context) (err error) {
	w, err := t.hire(ctx, t.want.Events)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.dismiss()) }()
	defer t.progress(fmt.Sprintf("%s drains, %d at work", t.who.name, t.workers), int64(t.want.Events), w.done)()
	return t.settled(ctx, w, int64(t.want.Events))
}

// fill inserts the backlog. Then it vacuums and analyzes all tables, so that no variant meets an autovacuum caused by the
// inserts.
func (t *trial) fill(ctx context.Context) error {
	defer t.progress("inserting "+number(float64(t.want.Events))+" events for "+t.who.name, 0, nil)()
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

// leftBehind counts the changed rows and the dead rows.
func (t *trial) leftBehind(ctx context.Context, d *VariantDrain) (err error) {
	if d.DeadRows, err = t.deadRows(ctx, t.schema); err != nil { // the workers' sessions have reported all changes by then
		return err
	}
	return t.pool.QueryRow(ctx, `SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = $1`,
		t.schema).Scan(&d.ChangedRows)
}
