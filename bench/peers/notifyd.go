package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/outbox"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	eventType = "bench.event"
	// outboxBatch is how many events one INSERT of a preload has.
	outboxBatch = 5000
)

// relayPeer is notifyd with its defaults.
type relayPeer struct {
	pool   *pgxpool.Pool // of the writers
	schema string
	log    *slog.Logger
}

func migrateNotifyd(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	return pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		_, err := outboxsql.Migrate(ctx, c.Conn(), schema, outboxsql.BellKeep)
		return err
	})
}

func (p *relayPeer) tables() tables {
	events := pgx.Identifier{p.schema, "outbox_events"}.Sanitize()
	deliveries := pgx.Identifier{p.schema, "outbox_deliveries"}.Sanitize()
	return tables{
		names: []string{events, deliveries},
		left:  "SELECT EXISTS (SELECT FROM " + events + " WHERE state = 'fresh') OR EXISTS (SELECT FROM " + deliveries + ")",
		done:  "SELECT count(*) FROM " + events + " WHERE state = 'done'",
	}
}

func (p *relayPeer) preload(ctx context.Context, n int) error {
	return inBatches(n, outboxBatch, func(from, to int) error {
		events := make([]outbox.Event, 0, to-from)
		for seq := from; seq < to; seq++ {
			events = append(events, outbox.Event{Type: eventType, Payload: newEvent(seq)})
		}
		return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error { return outbox.WriteTo(ctx, tx, p.schema, events...) })
	})
}

func (p *relayPeer) insert(ctx context.Context, tx pgx.Tx, seq int) error {
	return outbox.WriteTo(ctx, tx, p.schema, outbox.Event{Type: eventType, Payload: newEvent(seq)})
}

func (p *relayPeer) start(ctx context.Context, handle func(seq int)) (stop func() error, err error) {
	relay, err := notifyd.New(p.pool, notifyd.WithSchema(p.schema), notifyd.WithLogger(p.log))
	if err != nil {
		return nil, err
	}
	err = relay.Handle(eventType, eventType, notifyd.HandlerFunc(func(_ context.Context, e *notifyd.Event) error {
		var ev event
		if err := json.Unmarshal(e.Payload, &ev); err != nil {
			return notifyd.Permanent(err)
		}
		handle(ev.Seq)
		return nil
	}))
	if err != nil {
		return nil, err
	}
	runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(runCtx) }()
	stop = func() error {
		cancel()
		return <-ended
	}
	select {
	case <-relay.Ready():
		return stop, nil
	case err := <-ended:
		cancel()
		return nil, fmt.Errorf("the relay ended early: %w", err)
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), stop())
	}
}
