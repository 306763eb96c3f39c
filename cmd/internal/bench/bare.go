package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/store"
)

// bare drains by SQL alone: the statements of a relay, on as many connections, without a relay.
func (d *drain) bare(ctx context.Context, schema string, _ load) (result drained, err error) {
	b := &bareLoop{batch: d.want.Batch, settle: `UPDATE outbox_events SET state = 'done', processed_at = clock_timestamp()`}
	if d.want.Delete {
		b.settle = `DELETE FROM outbox_events`
	}
	b.settle += ` WHERE id = ANY($1::bigint[]) AND state = 'fresh'`
	connector := &store.Connector{Config: d.Pool.Config().ConnConfig, Schema: schema}
	began := time.Now()
	var tasks []func(context.Context) error
	for range d.want.Workers {
		tasks = append(tasks, func(ctx context.Context) error {
			conn, err := connector.Connect(ctx, "bench")
			if err != nil {
				return err
			}
			defer store.Close(ctx, conn)
			return b.run(ctx, conn)
		})
	}
	err = Together(ctx, tasks...)
	result.took = time.Since(began)
	missing := int64(d.want.Events) - b.done.Load()
	if err == nil && missing != 0 {
		err = fmt.Errorf("%d events were not drained", missing)
	}
	return result, err
}

// bareLoop is the state that the connections of [drain.bare] share.
type bareLoop struct {
	batch  int
	settle string
	done   atomic.Int64

	// Claims run one after the other, each from the end of the previous one; settlements overlap. Concurrent claims would
	// collide on rows. Settling and claiming in one round trip, over ranges of ids, was no faster.
	mu     sync.Mutex
	cursor int64
	end    bool
}

// run claims and settles batches until no event is left.
func (b *bareLoop) run(ctx context.Context, conn *pgx.Conn) error {
	ids := make([]int64, 0, b.batch)
	for {
		var err error
		ids, err = b.claim(ctx, conn, ids[:0])
		if err != nil || len(ids) == 0 {
			return err
		}

		var flight pgx.Batch
		flight.Queue(b.settle, ids)
		flight.Queue("COMMIT")
		if err := conn.SendBatch(ctx, &flight).Close(); err != nil {
			return err
		}
		b.done.Add(int64(len(ids)))
	}
}

// claim begins a transaction and locks the next events. Without events it begins none.
func (b *bareLoop) claim(ctx context.Context, conn *pgx.Conn, ids []int64) ([]int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.end {
		return ids, nil
	}

	var flight pgx.Batch
	flight.Queue("BEGIN")
	claim := freshColumns + ` AND id > $1::bigint ORDER BY id LIMIT $2::bigint FOR UPDATE SKIP LOCKED`
	flight.Queue(claim, b.cursor, int64(b.batch)).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			b.cursor = int64(binary.BigEndian.Uint64(rows.RawValues()[0])) //nolint:gosec // pgx reads a bigint in binary
			ids = append(ids, b.cursor)
		}
		return nil
	})
	err := conn.SendBatch(ctx, &flight).Close()
	b.end = len(ids) < b.batch
	return ids, err
}
