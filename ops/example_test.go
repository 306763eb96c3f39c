package ops_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// exampleStream returns a stream with three events of one order.
func exampleStream(ctx context.Context) *pgxpool.Pool {
	pool, err := pgxpool.New(ctx, testenv.ExampleDatabase(ctx))
	if err == nil {
		err = pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
			if _, err := outboxsql.Migrate(ctx, c.Conn(), "public", outboxsql.MigrateOptions{Notify: outboxsql.NotifyAuto}); err != nil {
				return err
			}
			return outboxsql.SetMode(ctx, c.Conn(), "public", outboxsql.ModeStream, outboxsql.ModeOptions{})
		})
	}
	if err == nil {
		_, err = pool.Exec(ctx, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
			SELECT 'order.paid', 'order', '7', '1' FROM generate_series(1, 3)`)
	}
	if err != nil {
		panic(err)
	}
	return pool
}

// passed waits until the warehouse has received all three.
func passed(ctx context.Context, pool *pgxpool.Pool) {
	for done := false; !done; {
		err := pool.QueryRow(ctx, `SELECT head = 3 AND open = '{}' FROM outbox_positions WHERE destination = 'warehouse'`).Scan(&done)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			panic(err)
		}
	}
}

// A warehouse has lost what it received. It receives it again, with new ids, while live events go on.
func ExampleClient_StartReplay() {
	ctx, stop := context.WithCancel(context.Background())
	pool := exampleStream(ctx)
	defer pool.Close()
	relay, err := notifyd.New(pool, notifyd.Config{})
	if err != nil {
		panic(err)
	}
	ids := make(chan string, 6)
	err = relay.Handle("order.*", notifyd.Destination{Name: "warehouse", Handler: delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		ids <- e.DedupeID()
		return nil
	})})
	if err != nil {
		panic(err)
	}
	run := make(chan error, 1)
	go func() { run <- relay.Run(ctx) }()
	passed(ctx, pool)

	store, err := ops.New(pool, ops.Config{Schema: "public"})
	if err != nil {
		panic(err)
	}
	replay, err := store.StartReplay(ctx, ops.ReplayRange{Destination: "warehouse", From: "2", Types: []string{"order.*"}, Rate: 500},
		ops.Action{Actor: "ann", Reason: "the warehouse lost a day"})
	if err != nil {
		panic(err)
	}
	replay, outcome, err := store.AwaitReplay(ctx, replay.ID, nil)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s: %d delivered, %d dead\n", replay.State, outcome.Delivered, outcome.Dead)
	stop()
	if err := <-run; err != nil {
		panic(err)
	}
	for range 5 {
		fmt.Println(<-ids)
	}
	// Output:
	// done: 2 delivered, 0 dead
	// 1
	// 2
	// 3
	// 2r1000
	// 3r1000
}
