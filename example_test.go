package notifyd_test

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/ops"
	"github.com/notifyd/notifyd/outbox"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// A shop writes an order and its event in one transaction; the relay calls the
// handler when it has been committed.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	pool := openExample(ctx)
	defer pool.Close()

	relay, err := notifyd.New(pool, notifyd.Config{})
	if err != nil {
		panic(err)
	}
	err = relay.Handle("order.created", notifyd.Destination{Name: "mail", Handler: delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		fmt.Printf("%s %s: %s\n", e.Type, e.AggregateID, e.Payload)
		stop() // one is enough for an example
		return nil
	})})
	if err != nil {
		panic(err)
	}

	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// ... INSERT INTO orders ...
		return outbox.Write(ctx, tx, outbox.Event{
			Type: "order.created", AggregateType: "order", AggregateID: "1042",
			Payload: map[string]any{"total": "12.50", "email": "ann@example.com"},
		})
	})
	if err != nil {
		panic(err)
	}

	if err := relay.Run(ctx); err != nil { // blocks until ctx ends
		panic(err)
	}
	// Output:
	// order.created 1042: {"email":"ann@example.com","total":"12.50"}
}

// The most specific pattern wins: the type itself, then the longest prefix, then the star.
func ExampleRelay_Handle() {
	ctx, stop := context.WithCancel(context.Background())
	pool := openExample(ctx)
	defer pool.Close()
	relay, err := notifyd.New(pool, notifyd.Config{})
	if err != nil {
		panic(err)
	}
	got := make(chan string, 3)
	to := func(name string) delivery.Handler {
		return delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
			got <- e.Type + " -> " + name
			return nil
		})
	}
	err = errors.Join(
		relay.Handle("order.created", notifyd.Destination{Name: "mailer", Handler: to("mailer")}),
		relay.Handle("order.*", notifyd.Destination{Name: "warehouse", Handler: to("warehouse"), Lane: delivery.Lane{Concurrency: 2}}),
		relay.Handle("*", notifyd.Destination{Name: "audit", Handler: to("audit")}),
	)
	if err != nil {
		panic(err)
	}
	write(ctx, pool, "order.created")
	write(ctx, pool, "order.shipped")
	write(ctx, pool, "customer.moved")
	run := start(ctx, relay)
	printSorted(got, 3)
	stop()
	<-run
	// Output:
	// customer.moved -> audit
	// order.created -> mailer
	// order.shipped -> warehouse
}

// A route may name several destinations. Each has retries and dead letters of
// its own: when one fails, the others are not called again.
func ExampleRelay_Route() {
	ctx, stop := context.WithCancel(context.Background())
	pool := openExample(ctx)
	defer pool.Close()
	relay, err := notifyd.New(pool, notifyd.Config{})
	if err != nil {
		panic(err)
	}
	got := make(chan string, 3)
	mail := delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		got <- fmt.Sprintf("mail, attempt %d", e.Attempt)
		if e.Attempt == 1 {
			return delivery.RetryAfter(0, errors.New("mailbox is busy"))
		}
		return nil
	})
	audit := delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		got <- fmt.Sprintf("audit, attempt %d", e.Attempt)
		return nil
	})
	err = errors.Join(
		relay.Add(notifyd.Destination{Name: "mail", Handler: mail}),
		relay.Add(notifyd.Destination{Name: "audit", Handler: audit}),
		relay.Route("order.*", "mail", "audit"),
	)
	if err != nil {
		panic(err)
	}
	write(ctx, pool, "order.created")
	run := start(ctx, relay)
	printSorted(got, 3)
	stop()
	<-run
	// Output:
	// audit, attempt 1
	// mail, attempt 1
	// mail, attempt 2
}

// A failure that no retry can cure is marked as permanent: the event becomes a dead letter at once,
// and stays in outbox_deliveries for a person.
func ExamplePermanent() {
	ctx, stop := context.WithCancel(context.Background())
	pool := openExample(ctx)
	defer pool.Close()
	relay, err := notifyd.New(pool, notifyd.Config{})
	if err != nil {
		panic(err)
	}
	err = relay.Handle("order.*", notifyd.Destination{Name: "orders", Handler: delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		return delivery.Permanent(fmt.Errorf("order %s has no customer", e.AggregateID))
	})})
	if err != nil {
		panic(err)
	}
	write(ctx, pool, "order.created")
	run := start(ctx, relay)
	fmt.Println(deadLetter(ctx, pool))
	stop()
	<-run
	// Output:
	// orders: dead after 1 attempt(s): order 1042 has no customer
}

// A handler that knows when to retry returns the delay; the backoff is for those that do not.
func ExampleRetryAfter() {
	ctx, stop := context.WithCancel(context.Background())
	pool := openExample(ctx)
	defer pool.Close()
	relay, err := notifyd.New(pool, notifyd.Config{})
	if err != nil {
		panic(err)
	}
	got := make(chan string, 2)
	err = relay.Handle("order.*", notifyd.Destination{Name: "orders", Handler: delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		got <- fmt.Sprintf("attempt %d", e.Attempt)
		if e.Attempt == 1 {
			const retryAfter = 20 * millisecond // as the server's answer says
			return delivery.RetryAfter(retryAfter, errors.New("too many requests"))
		}
		return nil
	})})
	if err != nil {
		panic(err)
	}
	write(ctx, pool, "order.created")
	run := start(ctx, relay)
	fmt.Println(<-got)
	fmt.Println(<-got)
	stop()
	<-run
	// Output:
	// attempt 1
	// attempt 2
}

// A destination that is down is not the event's fault: no attempt is counted, its events wait, and
// one at a time probes it until it answers.
func ExampleUnavailable() {
	ctx, stop := context.WithCancel(context.Background())
	pool := openExample(ctx)
	defer pool.Close()
	relay, err := notifyd.New(pool, notifyd.Config{})
	if err != nil {
		panic(err)
	}
	got := make(chan string, 2)
	calls := 0
	err = relay.Handle("order.*", notifyd.Destination{Name: "orders", Handler: delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		calls++
		got <- fmt.Sprintf("call %d is attempt %d", calls, e.Attempt)
		if calls == 1 {
			return delivery.Unavailable(errors.New("connection refused"))
		}
		return nil
	}), Lane: delivery.Lane{Concurrency: 1}})
	if err != nil {
		panic(err)
	}
	write(ctx, pool, "order.created")
	run := start(ctx, relay)
	fmt.Println(<-got)
	fmt.Println(<-got)
	stop()
	<-run
	// Output:
	// call 1 is attempt 1
	// call 2 is attempt 1
}

// Middleware wraps handlers; the first one added is the outermost.
func ExampleRelay_Use() {
	ctx, stop := context.WithCancel(context.Background())
	pool := openExample(ctx)
	defer pool.Close()
	relay, err := notifyd.New(pool, notifyd.Config{})
	if err != nil {
		panic(err)
	}
	got := make(chan string, 5)
	named := func(name string) delivery.Middleware {
		return func(next delivery.Handler) delivery.Handler {
			return delivery.HandlerFunc(func(ctx context.Context, e *delivery.Event) error {
				got <- name + " in"
				err := next.Deliver(ctx, e)
				got <- name + " out"
				return err
			})
		}
	}
	relay.Use(named("tracing"))
	err = relay.Handle("order.*", notifyd.Destination{Name: "orders", Handler: delivery.HandlerFunc(func(context.Context, *delivery.Event) error {
		got <- "handler"
		return nil
	}), Middleware: []delivery.Middleware{named("metrics")}})
	if err != nil {
		panic(err)
	}
	write(ctx, pool, "order.created")
	run := start(ctx, relay)
	for range 5 {
		fmt.Println(<-got)
	}
	stop()
	<-run
	// Output:
	// tracing in
	// metrics in
	// handler
	// metrics out
	// tracing out
}

// A handler that can take several events at once answers for each of them.
func ExampleBatchHandlerFunc() {
	ctx, stop := context.WithCancel(context.Background())
	pool := openExample(ctx)
	defer pool.Close()
	relay, err := notifyd.New(pool, notifyd.Config{})
	if err != nil {
		panic(err)
	}
	err = relay.Handle("order.*", notifyd.Destination{Name: "orders", Handler: delivery.BatchHandlerFunc(func(_ context.Context, events []*delivery.Event) []error {
		errs := make([]error, len(events))
		for i, e := range events {
			if e.Type == "order.broken" {
				errs[i] = delivery.Permanent(errors.New("broken"))
			}
		}
		return errs // the neighbours of a bad event are delivered
	}), Lane: delivery.Lane{Batch: 500}})
	if err != nil {
		panic(err)
	}
	write(ctx, pool, "order.created")
	write(ctx, pool, "order.broken")
	write(ctx, pool, "order.shipped")
	run := start(ctx, relay)
	fmt.Println(deadLetter(ctx, pool))
	stop()
	<-run
	// Output:
	// orders: dead after 1 attempt(s): broken
}

// Dead letters are replayed when their cause is fixed. A replay has an id of its own, so that no
// consumer takes it for a duplicate.
func ExampleRelay_Ops() {
	ctx, stop := context.WithCancel(context.Background())
	pool := openExample(ctx)
	defer pool.Close()
	relay, err := notifyd.New(pool, notifyd.Config{})
	if err != nil {
		panic(err)
	}
	var fixed atomic.Bool
	delivered := make(chan string, 1)
	err = relay.Handle("order.created", notifyd.Destination{Name: "mail", Handler: delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		if !fixed.Load() {
			return delivery.Permanent(errors.New("unknown customer"))
		}
		delivered <- fmt.Sprintf("delivered, id %s", e.DedupeID())
		return nil
	})})
	if err != nil {
		panic(err)
	}
	write(ctx, pool, "order.created")
	run := start(ctx, relay)
	fmt.Println(deadLetter(ctx, pool))

	fixed.Store(true)
	result, err := relay.Ops().ReplayDeadLetters(ctx, ops.DeadLetterFilter{Destination: "mail", NewerThan: 2 * time.Hour},
		ops.BulkAction{Actor: "ops", Reason: "the customer is there", Rate: 50})
	if err != nil {
		panic(err)
	}
	fmt.Printf("replayed %d of %d\n", result.Done, result.Matched)
	fmt.Println(<-delivered)
	stop()
	<-run
	// Output:
	// mail: dead after 1 attempt(s): unknown customer
	// replayed 1 of 1
	// delivered, id 1r1
}

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

func TestMain(m *testing.M) { testenv.Main(m) }

// openExample returns a pool on a fresh database with the tables in it, for
// the examples: programs have a database and have run `notifyd migrate`.
func openExample(ctx context.Context) *pgxpool.Pool {
	pool, err := pgxpool.New(ctx, testenv.ExampleDatabase(ctx))
	if err != nil {
		panic(err)
	}
	if err := outboxsql.MigratePool(ctx, pool); err != nil {
		panic(err)
	}
	return pool
}
