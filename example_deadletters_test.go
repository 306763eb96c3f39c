package notifyd_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/ops"
)

// Dead letters are replayed when their cause is fixed. A replay has an id of its own, so that no
// consumer takes it for a duplicate.
func ExampleRelay_Ops() {
	ctx, stop := context.WithCancel(context.Background())
	pool := openExample(ctx)
	defer pool.Close()
	relay, err := notifyd.New(pool)
	if err != nil {
		panic(err)
	}
	var fixed atomic.Bool
	delivered := make(chan string, 1)
	err = relay.Handle("mail", "order.created", delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		if !fixed.Load() {
			return delivery.Permanent(errors.New("unknown customer"))
		}
		delivered <- fmt.Sprintf("delivered, id %s", e.DedupeID())
		return nil
	}))
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
