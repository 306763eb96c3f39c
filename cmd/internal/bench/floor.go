package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/store"
)

// freshColumns are the columns of an event that a relay reads in its claims.
const freshColumns = `SELECT id, event_type, aggregate_type, aggregate_id, payload, headers, created_at,
	(extract(epoch FROM available_at - clock_timestamp()) * 1000000)::bigint, traceparent FROM outbox_events WHERE state = 'fresh'`

// floorClaims is how many events can be claimed at a time: as many as by a relay.
const floorClaims = 4

// floorBuffer is how many notifications may wait for a claim.
const floorBuffer = 1024

// startFloor runs the least work that a pushed event takes, without a dispatcher: one connection that listens, and others
// that claim the row, call the handler and mark the event done.
func (l *latency) startFloor(ctx context.Context, to *side) (stop func() error, err error) {
	connector := &store.Connector{Config: l.pool.Config().ConnConfig, Schema: to.schema}
	var conns []*pgx.Conn
	defer func() {
		if err != nil {
			closeAll(ctx, conns)
		}
	}()
	for range floorClaims + 1 {
		conn, err := connector.Connect(ctx, "bench")
		if err != nil {
			return nil, err
		}
		conns = append(conns, conn)
		err = prepare(ctx, conn, map[string]string{
			"begin": "BEGIN", "commit": "COMMIT",
			"claim": freshColumns + ` AND id = $1::bigint FOR UPDATE SKIP LOCKED`,
			"done":  `UPDATE outbox_events SET state = 'done', processed_at = clock_timestamp() WHERE id = $1::bigint AND state = 'fresh'`,
		})
		if err != nil {
			return nil, err
		}
	}
	if _, err := conns[0].Exec(ctx, "LISTEN "+pgx.Identifier{pgschema.Channel(to.schema)}.Sanitize()); err != nil {
		return nil, err
	}
	ids := make(chan int64, floorBuffer)
	tasks := []func(context.Context) error{func(ctx context.Context) error { return hear(ctx, conns[0], ids) }}
	for _, conn := range conns[1:] {
		tasks = append(tasks, func(ctx context.Context) error { return l.floorClaims(ctx, conn, ids, to) })
	}
	r := start(ctx, func(ctx context.Context) error { return together(ctx, tasks...) })
	return func() error {
		err := r.stop()
		closeAll(ctx, conns)
		if errors.Is(err, context.Canceled) {
			return nil // stop ends it
		}
		return err
	}, nil
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

// floorClaims claims one event after the other.
func (l *latency) floorClaims(ctx context.Context, conn *pgx.Conn, ids <-chan int64, to *side) error {
	for id := range ids {
		param := [][]byte{int8Param(id)}
		err := fly(ctx, conn, statement{name: "begin"}, statement{
			name: "claim", params: param, formats: freshFormats(),
			row: func([][]byte) error {
				to.handled(id, time.Since(l.start))
				return nil
			},
		})
		if err == nil {
			err = fly(ctx, conn, statement{name: "done", params: param}, statement{name: "commit"})
		}
		if err != nil {
			return fmt.Errorf("the floor's claim: %w", err)
		}
	}
	return nil
}

// freshFormats returns the formats of a relay's claim: numbers and times in binary.
func freshFormats() []int16 { return []int16{1, 0, 0, 0, 0, 0, 1, 1, 0} }
