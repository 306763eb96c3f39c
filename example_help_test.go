package notifyd_test

import (
	"context"
	"fmt"
	"sort"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/outbox"
)

const millisecond = time.Millisecond

// write writes one event of the given type about order 1042.
func write(ctx context.Context, pool *pgxpool.Pool, eventType string) {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return outbox.Write(ctx, tx, outbox.Event{Type: eventType, AggregateType: "order", AggregateID: "1042", Payload: 1})
	})
	if err != nil {
		panic(err)
	}
}

// start runs the relay in the background; the channel is closed when it has ended.
func start(ctx context.Context, relay *notifyd.Relay) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := relay.Run(ctx); err != nil {
			panic(err)
		}
	}()
	return done
}

// printSorted prints n lines in an order that does not depend on timing.
func printSorted(lines <-chan string, n int) {
	var all []string
	for range n {
		all = append(all, <-lines)
	}
	sort.Strings(all)
	for _, line := range all {
		fmt.Println(line)
	}
}

// deadLetter waits for the one dead letter and describes it.
func deadLetter(ctx context.Context, pool *pgxpool.Pool) (text string) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for ; ctx.Err() == nil; <-tick.C {
		err := pool.QueryRow(ctx, `SELECT format('%s: %s after %s attempt(s): %s', destination, state, attempts, last_error)
			FROM outbox_deliveries WHERE state = 'dead'`).Scan(&text)
		if err == nil {
			return text
		}
	}
	return "none"
}
