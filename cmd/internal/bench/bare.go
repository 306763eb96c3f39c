package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/store"
)

// bare drains by SQL alone: the statements of a relay, on as many connections, without
// a relay.
func (d *drain) bare(ctx context.Context, schema string, _ load) (result drained, err error) {
	b := &bareLoop{batch: d.want.Batch, settle: `UPDATE outbox_events SET state = 'done', processed_at = clock_timestamp() WHERE id = ANY($1::bigint[]) AND state = 'fresh'`}
	if d.want.Delete {
		b.settle = `DELETE FROM outbox_events WHERE id = ANY($1::bigint[]) AND state = 'fresh'`
	}
	connector := &store.Connector{Config: d.pool.Config().ConnConfig, Schema: schema}
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
	err = together(ctx, tasks...)
	result.took = time.Since(began)
	if missing := int64(d.want.Events) - b.done.Load(); err == nil && missing != 0 {
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

func (b *bareLoop) run(ctx context.Context, conn *pgx.Conn) error {
	err := prepare(ctx, conn, map[string]string{
		"begin": "BEGIN", "commit": "COMMIT", "settle": b.settle,
		"claim": freshColumns + ` AND id > $1::bigint ORDER BY id LIMIT $2::bigint FOR UPDATE SKIP LOCKED`,
	})
	if err != nil {
		return err
	}
	ids, param := make([]int64, 0, b.batch), []byte(nil)
	for {
		if ids, err = b.claim(ctx, conn, ids[:0]); err != nil {
			return err
		}
		if len(ids) == 0 {
			return fly(ctx, conn, statement{name: "commit"})
		}
		param = int8Array(param[:0], ids)
		if err := fly(ctx, conn, statement{name: "settle", params: [][]byte{param}}, statement{name: "commit"}); err != nil {
			return err
		}
		b.done.Add(int64(len(ids)))
	}
}

func (b *bareLoop) claim(ctx context.Context, conn *pgx.Conn, ids []int64) ([]int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.end {
		return ids, fly(ctx, conn, statement{name: "begin"})
	}
	err := fly(ctx, conn, statement{name: "begin"}, statement{
		name: "claim", params: [][]byte{int8Param(b.cursor), int8Param(int64(b.batch))}, formats: freshFormats(),
		row: func(values [][]byte) error {
			if len(values[0]) != 8 {
				return errors.New("an id is not a bigint")
			}
			ids = append(ids, int64(binary.BigEndian.Uint64(values[0]))) //nolint:gosec // all 64 bits are kept
			return nil
		},
	})
	if b.end = len(ids) < b.batch; len(ids) > 0 {
		b.cursor = ids[len(ids)-1]
	}
	return ids, err
}
