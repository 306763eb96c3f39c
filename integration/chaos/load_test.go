package chaos

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	writers     = 4
	writerKeys  = 10
	writerBatch = 5
	// writeWithin bounds one statement of a writer. It may wait for a lock.
	writeWithin = 30 * time.Second
)

// load is the writes of applications. Each aggregate has one writer, whose
// transactions follow one another, because only then is order promised.
type load struct {
	cell *cell
	stop context.CancelFunc // of the writers; nil without writers
	work sync.WaitGroup

	mu      sync.Mutex
	written map[int64]bool // committed for certain
	refused int
}

func newLoad(c *cell) *load {
	l := &load{cell: c, written: make(map[int64]bool)}
	c.t.Cleanup(func() { l.end() })
	return l
}

// steady starts the writers.
func (l *load) steady() {
	ctx, stop := context.WithCancel(context.WithoutCancel(l.cell.ctx))
	l.stop = stop
	for w := range writers {
		l.work.Go(func() {
			tick := time.NewTicker(l.cell.form.every)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				_ = l.insert(fmt.Sprintf("w%d-", w), writerKeys, writerBatch) // counted; the next one follows
			}
		})
	}
}

// end ends the writers, and reports whether there were any.
func (l *load) end() bool {
	steady := l.stop != nil
	if steady {
		l.stop()
	}
	l.stop = nil
	l.work.Wait()
	return steady
}

// forget returns the written events, and clears the record.
func (l *load) forget() map[int64]bool {
	written := l.truth()
	l.written = make(map[int64]bool)
	return written
}

// insert writes n events for the given number of aggregates. Those without a key
// are one in eleven.
func (l *load) insert(prefix string, keys, n int) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.cell.ctx), writeWithin)
	defer cancel()
	rows, err := l.cell.pool.Query(ctx, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
		SELECT 'chaos', CASE WHEN i % 11 > 0 THEN 'order' END, CASE WHEN i % 11 > 0 THEN $1::text || i % $2::int END, '{}'
		FROM generate_series(1, $3::int) i RETURNING id`, prefix, keys, n)
	var ids []int64
	if err == nil {
		ids, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.refused++
		return err
	}
	for _, id := range ids {
		l.written[id] = true
	}
	return nil
}

// insist writes until the database accepts it.
func (l *load) insist(prefix string, keys, n int) {
	l.cell.t.Helper()
	l.cell.await("the database accepts events", func() bool { return l.insert(prefix, keys, n) == nil })
}

func (l *load) refusals() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

// known returns the events that a writer knows of.
func (l *load) known() map[int64]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.written)
}

// truth returns the events that were written: those that a writer knows of, and
// those whose commit got no answer.
func (l *load) truth() map[int64]bool {
	l.cell.t.Helper()
	rows, err := l.cell.pool.Query(l.cell.ctx, `SELECT id FROM outbox_events`)
	if err != nil {
		l.cell.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		l.cell.t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		l.written[id] = true
	}
	return l.written
}
