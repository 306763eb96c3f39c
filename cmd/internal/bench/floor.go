package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/store"
)

// floorClaims is how many events can be claimed at a time: as many as by a relay.
const floorClaims = 4

// startFloor runs the least work that a pushed event takes, without a dispatcher: one connection that listens, and others
// that claim the row, call the handler and mark the event done.
func (l *latency) startFloor(ctx context.Context, to *side) (stop func() error, err error) {
	connector := &store.Connector{Config: l.Pool.Config().ConnConfig, Schema: to.schema}
	var conns writers
	for range floorClaims + 1 {
		conn, err := connector.Connect(ctx, "bench")
		if err != nil {
			conns.close(ctx)
			return nil, err
		}
		conns = append(conns, conn)
	}
	listener := conns[floorClaims]
	if _, err := listener.Exec(ctx, "LISTEN "+pgx.Identifier{pgschema.Channel(to.schema)}.Sanitize()); err != nil {
		conns.close(ctx)
		return nil, err
	}

	r := start(ctx, func(ctx context.Context) error {
		defer conns.close(ctx)
		const mostWaiting = 1024
		ids := make(chan int64, mostWaiting)
		return endedBy(ctx, Together(ctx,
			func(ctx context.Context) error { return hear(ctx, listener, ids) },
			func(ctx context.Context) error {
				return conns[:floorClaims].each(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error {
					return l.claim(ctx, conn, ids, to)
				})
			}))
	})
	return r.stop, nil
}

// hear passes notified ids on until ctx ends.
func hear(ctx context.Context, conn *pgx.Conn, ids chan<- int64) error {
	defer close(ids)
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		id, err := strconv.ParseInt(n.Payload, 10, 64)
		if err != nil {
			return fmt.Errorf("the floor heard %q: %w", n.Payload, err)
		}
		ids <- id
	}
}

// claim claims one event after the other.
func (l *latency) claim(ctx context.Context, conn *pgx.Conn, ids <-chan int64, to *side) error {
	for id := range ids {
		var claim, settle pgx.Batch
		claim.Queue("BEGIN")
		claim.Queue(freshColumns+` AND id = $1::bigint FOR UPDATE SKIP LOCKED`, id).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				to.handled(id, time.Since(l.start))
			}
			return nil
		})
		settle.Queue(`UPDATE outbox_events SET state = 'done', processed_at = clock_timestamp() WHERE id = $1::bigint AND state = 'fresh'`, id)
		settle.Queue("COMMIT")
		for _, flight := range []*pgx.Batch{&claim, &settle} {
			if err := conn.SendBatch(ctx, flight).Close(); err != nil {
				return fmt.Errorf("the floor's claim: %w", err)
			}
		}
	}
	return nil
}
