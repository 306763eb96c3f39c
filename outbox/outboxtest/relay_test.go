package outboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/outbox"
	"github.com/notifyd/notifyd/outbox/outboxtest"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// The relay in memory calls handlers within the writer's transaction, by the routes of a real one.
func TestRelayInMemory(t *testing.T) {
	t.Parallel()
	tx := testdb.Begin(t, database(t, "public", outboxsql.ModeQueue), pgx.TxOptions{})
	var calls []string
	var relay outboxtest.Relay
	refused := errors.New("refused")
	note := func(_ context.Context, e *delivery.Event) error {
		calls = append(calls, fmt.Sprintf("%s %s %d", e.Destination, e.AggregateID, e.Attempt))
		switch e.AggregateID {
		case "bad":
			return refused
		case "1":
			write(t, tx, order("mail.sent", "written by a handler", 0))
		}
		return nil
	}
	relay.Handle(t, "mail", "order.created", delivery.HandlerFunc(note))
	relay.Handle(t, "stock", "order.created", delivery.HandlerFunc(note))
	relay.Handle(t, "audit", "order.*", delivery.HandlerFunc(note))
	relay.Handle(t, "log", "mail.*", delivery.HandlerFunc(note))
	fails(t, func(tb *recorder) { new(outboxtest.Relay).Handle(tb, "x", "a*", delivery.HandlerFunc(note)) }, "invalid pattern")

	write(t, tx, order("order.created", "1", 0), order("order.paid", "2", 0), order("other", "3", 0), order("order.paid", "bad", 0))
	src := outboxtest.Pgx(tx)
	delivered, err := relay.Deliver(t, src)
	if !errors.Is(err, refused) || len(delivered) != 5 {
		t.Errorf("delivered %v: %v", delivered, err)
	}
	want := []string{"mail 1 1", "stock 1 1", "audit 2 1", "audit bad 1", "log written by a handler 1"}
	// The stock's handler writes as well.
	want = append(want, want[len(want)-1])
	if !slices.Equal(calls, want) {
		t.Errorf("calls %q, want %q", calls, want)
	}
	if delivered, err := relay.Deliver(t, src); err != nil || len(delivered) != 0 {
		t.Errorf("again: %v, %v", delivered, err)
	}
}

func TestDelivered(t *testing.T) {
	t.Parallel()
	for _, mode := range []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			pool := database(t, "public", mode)
			src := outboxtest.Pgx(pool)
			outboxtest.Delivered(t, src, time.Minute) // nothing to deliver
			own, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			fails(t, func(tb *recorder) { outboxtest.Delivered(tb, outboxtest.Pgx(own), time.Minute) }, "through a transaction")
			if err := own.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			commit(t, pool, order("order.created", "1", 0))
			state := "not tried yet"
			if mode == outboxsql.ModeStream {
				state = "no relay has delivered anything"
			}
			fails(t, func(tb *recorder) { outboxtest.Delivered(tb, src, time.Millisecond) }, "not delivered after 1ms", "#1 order.created", state)

			open, entered := make(chan struct{}), make(chan struct{}, 10)
			run(t, pool, "order.*", func(ctx context.Context, e *delivery.Event) error {
				if e.AggregateID == "dies" {
					return delivery.Permanent(errors.New("no such customer"))
				}
				entered <- struct{}{}
				select {
				case <-open:
				case <-ctx.Done():
				}
				return ctx.Err()
			})
			<-entered
			fails(t, func(tb *recorder) { outboxtest.Delivered(tb, src, 50*time.Millisecond) }, "not delivered after 50ms")
			close(open)
			outboxtest.Delivered(t, src, time.Minute)

			before := src.Now(t)
			commit(t, pool, order("order.created", "dies", 0))
			fails(t, func(tb *recorder) { outboxtest.Delivered(tb, src, time.Minute) }, "dead letters", "#2 order.created to mail: dead: no such customer")
			after := before.Now(t)
			outboxtest.Delivered(t, after, time.Minute) // the dead letter is of before

			commit(t, pool, order("nobody's", "2", 0))
			fails(t, func(tb *recorder) { outboxtest.Delivered(tb, after, time.Millisecond) }, "not delivered after 1ms", "#3 nobody's")
		})
	}
}

func commit(tb testing.TB, pool *pgxpool.Pool, events ...outbox.Event) {
	tb.Helper()
	tx := testdb.Begin(tb, pool, pgx.TxOptions{})
	write(tb, tx, events...)
	if err := tx.Commit(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

// run runs a relay until the test ends.
func run(tb testing.TB, pool *pgxpool.Pool, pattern string, h delivery.HandlerFunc) {
	tb.Helper()
	relay, err := notifyd.New(pool, notifyd.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	if err := relay.Handle(pattern, notifyd.Destination{Name: "mail", Handler: h}); err != nil {
		tb.Fatal(err)
	}
	ctx, stop := context.WithCancel(tb.Context())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	tb.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			tb.Error(err)
		}
	})
}
