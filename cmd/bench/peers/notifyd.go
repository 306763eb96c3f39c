package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/cmd/internal/bench"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/outbox"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	eventType = "bench.event"
	// outboxSchema is the schema of notifyd's tables.
	outboxSchema = "public"
)

// relayPeer is notifyd with its defaults.
type relayPeer struct {
	db   database
	mode outboxsql.Mode
	log  *slog.Logger
}

// openNotifyd returns a function that creates the tables of one mode.
func openNotifyd(mode outboxsql.Mode) func(context.Context, *comparison, database) ([]*variant, error) {
	return func(ctx context.Context, c *comparison, db database) ([]*variant, error) {
		err := db.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
			if _, err := outboxsql.Migrate(ctx, conn.Conn(), outboxSchema, outboxsql.MigrateOptions{}); err != nil {
				return err
			}
			return outboxsql.SetMode(ctx, conn.Conn(), outboxSchema, mode, outboxsql.ModeOptions{})
		})
		return []*variant{{
			name: "notifyd " + string(mode), settings: "defaults, " + commitOff.String(),
			measures: drains | latencies | inserts, peer: &relayPeer{db: db, mode: mode, log: c.log},
		}}, err
	}
}

func (p *relayPeer) tables() tables {
	events := pgx.Identifier{outboxSchema, "outbox_events"}.Sanitize()
	deliveries := pgx.Identifier{outboxSchema, "outbox_deliveries"}.Sanitize()
	t := tables{names: []string{events, deliveries}}
	if p.mode == outboxsql.ModeQueue {
		t.left = "SELECT EXISTS (SELECT FROM " + events + " WHERE state = 'fresh') OR EXISTS (SELECT FROM " + deliveries + ")"
		t.done = "SELECT count(*) FROM " + events + " WHERE state = 'done'"
		return t
	}
	// Everything up to the head is acknowledged, or in an open range.
	position := "(SELECT head, open FROM " + pgx.Identifier{outboxSchema, "outbox_positions"}.Sanitize() + " WHERE destination = '" + eventType + "')"
	t.left = "SELECT EXISTS (SELECT FROM " + events + " WHERE id > coalesce((SELECT min(head) FROM " + position + " p), 0))" +
		" OR EXISTS (SELECT FROM " + position + " p, unnest(p.open) o JOIN " + events + " e ON e.id >= lower(o) AND e.id < upper(o))" +
		" OR EXISTS (SELECT FROM " + deliveries + ")"
	t.done = "SELECT count(*) FROM " + events + " e, " + position + " p WHERE e.id <= p.head AND NOT e.id <@ p.open"
	return t
}

func (p *relayPeer) preload(ctx context.Context, n int) error {
	return inBatches(n, func(from, to int) error {
		events := make([]outbox.Event, 0, to-from)
		for seq := from; seq < to; seq++ {
			events = append(events, outbox.Event{Type: eventType, Payload: newEvent(seq)})
		}
		return pgx.BeginFunc(ctx, p.db.pool, func(tx pgx.Tx) error { return outbox.WriteTo(ctx, tx, outboxSchema, events...) })
	})
}

func (p *relayPeer) insert(ctx context.Context, tx pgx.Tx, seq int) error {
	return outbox.WriteTo(ctx, tx, outboxSchema, outbox.Event{Type: eventType, Payload: newEvent(seq)})
}

func (p *relayPeer) launch(_ context.Context, c calls) (worker, error) {
	relay, err := notifyd.New(p.db.pool, notifyd.Config{Schema: outboxSchema, Logger: p.log})
	if err != nil {
		return nil, err
	}
	err = relay.Handle(eventType, notifyd.Destination{Name: eventType, Handler: delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		var ev event
		if err := json.Unmarshal(e.Payload, &ev); err != nil {
			return delivery.Permanent(err)
		}
		c.handled(ev.Seq, time.Time{})
		return nil
	})})
	if err != nil {
		return nil, err
	}
	return &relayWorker{relay: relay}, nil
}

// relayWorker is a relay in this process.
type relayWorker struct {
	relay *notifyd.Relay
	end   func() error // nil until it runs
}

func (w *relayWorker) start(ctx context.Context) (err error) {
	w.end, err = bench.StartRelay(ctx, w.relay)
	return err
}

func (w *relayWorker) stop() error {
	if w.end == nil {
		return nil
	}
	return w.end()
}
