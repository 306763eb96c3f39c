package shop

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/inbox"
	"github.com/notifyd/notifyd/ops"
	"github.com/notifyd/notifyd/outbox"
	outboxsql "github.com/notifyd/notifyd/sql"
)

var nothing = delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil })

// relayOf returns a relay of the schema "public" with a destination.
func relayOf(t *testing.T, pool *pgxpool.Pool, lane delivery.Lane) *notifyd.Relay {
	t.Helper()
	relay, err := notifyd.New(pool, notifyd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := relay.Handle("*", notifyd.Destination{Name: "mail", Handler: nothing, Lane: lane}); err != nil {
		t.Fatal(err)
	}
	return relay
}

// TestErrorsOfRun meets the errors that Run documents.
func TestErrorsOfRun(t *testing.T) {
	t.Parallel()
	exec := func(statement string) func(*testing.T, *pgxpool.Pool) {
		return func(t *testing.T, pool *pgxpool.Pool) {
			t.Helper()
			if _, err := pool.Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		mode    outboxsql.Mode // "" for no tables
		prepare func(*testing.T, *pgxpool.Pool)
		lane    delivery.Lane
		want    error
	}{
		"not migrated": {want: outboxsql.ErrNotMigrated},
		"too new": {
			mode: outboxsql.ModeQueue, prepare: exec("INSERT INTO outbox_migrations (version, name) VALUES (1000, 'of a newer notifyd')"), want: outboxsql.ErrTooNew,
		},
		"no stream":    {mode: outboxsql.ModeStream, prepare: exec("ALTER SEQUENCE outbox_events_id_seq INCREMENT BY 2"), want: outboxsql.ErrStream},
		"total order":  {mode: outboxsql.ModeQueue, lane: delivery.Lane{Order: delivery.OrderTotal}, want: notifyd.ErrNeedsStream},
		"shards":       {mode: outboxsql.ModeQueue, lane: delivery.Lane{Shards: 2}, want: notifyd.ErrNeedsStream},
		"a start":      {mode: outboxsql.ModeQueue, lane: delivery.Lane{StartFrom: "beginning"}, want: notifyd.ErrNeedsStream},
		"dead letters": {mode: outboxsql.ModeQueue, lane: delivery.Lane{OnDead: delivery.OnDead{Then: delivery.OnDeadBlock}}, want: notifyd.ErrNeedsStream},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			if c.mode != "" {
				migrate(t, pool, "public", c.mode)
			}
			if c.prepare != nil {
				c.prepare(t, pool)
			}
			relay := relayOf(t, pool, c.lane)
			if err := relay.Run(t.Context()); !errors.Is(err, c.want) || errors.Is(err, notifyd.ErrPooler) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if err := relay.Run(t.Context()); !errors.Is(err, notifyd.ErrRunTwice) {
				t.Errorf("run again: %v", err)
			}
		})
	}
}

// TestShutdownIncomplete: Run names a handler that ignores the end of its context.
func TestShutdownIncomplete(t *testing.T) {
	t.Parallel()
	pool := migrated(t, "public", outboxsql.ModeQueue)
	relay, err := notifyd.New(pool, notifyd.Config{ShutdownTimeout: notifyd.None})
	if err != nil {
		t.Fatal(err)
	}
	entered, leave, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
	err = relay.Handle("*", notifyd.Destination{Name: "slow", Handler: delivery.HandlerFunc(func(context.Context, *delivery.Event) error {
		defer close(left)
		close(entered)
		<-leave
		return nil
	})})
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, relay)
	write(t, pool, outbox.Event{Type: "order.placed", Payload: 1})
	<-entered
	if err := stop(); !errors.Is(err, notifyd.ErrShutdownIncomplete) {
		t.Errorf("%v, want ErrShutdownIncomplete", err)
	}
	close(leave)
	<-left
}

// write commits events.
func write(t *testing.T, pool *pgxpool.Pool, all ...outbox.Event) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return outbox.Write(t.Context(), tx, all...) })
	if err != nil {
		t.Fatal(err)
	}
}

// batches is a handler that takes batches.
var batches = delivery.BatchHandlerFunc(func(context.Context, []*delivery.Event) []error { return nil })

// TestErrorsOfCalls meets the errors of what returns at once.
func TestErrorsOfCalls(t *testing.T) {
	t.Parallel()
	pool := migrated(t, "public", outboxsql.ModeQueue)
	ctx := t.Context()
	relay := relayOf(t, pool, delivery.Lane{})
	one := func(h delivery.Handler) delivery.Handler { return delivery.HandlerFunc(h.Deliver) } // loses batches
	client := relay.Ops()
	_, noSchema := ops.New(pool, ops.Config{Schema: "\x00"})
	_, noEvent := client.Event(ctx, 1)
	_, noCase := client.Case(ctx, 1)
	_, noChoice := client.ReplayDeadLetters(ctx, ops.DeadLetterFilter{}, ops.BulkAction{})
	notDead := client.EditEvent(ctx, writeOne(t, pool), []byte("{}"), ops.Action{Actor: "ann"})
	_, queue := client.Position(ctx, "mail")
	_, badConsumer := inbox.Once(ctx, begin(t, pool), inbox.Consumer{}, "1", func(context.Context) error { return nil })
	for name, c := range map[string]struct{ err, want error }{
		"a pause of nothing":   {client.Pause(ctx, "", ops.Action{Actor: "ann"}), ops.ErrInvalid},
		"a name twice":         {relay.Add(notifyd.Destination{Name: "mail", Handler: nothing}), notifyd.ErrDestination},
		"no concurrency":       {relay.Add(notifyd.Destination{Name: "fax", Handler: nothing, Lane: delivery.Lane{Concurrency: -1}}), notifyd.ErrDestination},
		"a start":              {relay.Add(notifyd.Destination{Name: "fax", Handler: nothing, Lane: delivery.Lane{StartFrom: "yesterday"}}), notifyd.ErrDestination},
		"a route to nowhere":   {relay.Route("order.*", "fax"), notifyd.ErrDestination},
		"a pattern":            {relay.Handle("order*", notifyd.Destination{Name: "fax", Handler: nothing}), delivery.ErrPattern},
		"a pattern twice":      {relay.Route("*", "mail"), delivery.ErrPattern},
		"middleware":           {relay.Add(notifyd.Destination{Name: "fax", Handler: batches, Middleware: []delivery.Middleware{one}}), delivery.ErrMiddleware},
		"an event":             {outbox.Write(ctx, begin(t, pool), outbox.Event{Type: "order *", Payload: 1}), outbox.ErrInvalid},
		"a schema":             {noSchema, ops.ErrInvalid},
		"no such event":        {noEvent, ops.ErrNoEvent},
		"no such case":         {noCase, ops.ErrNoEvent},
		"no choice":            {noChoice, ops.ErrInvalid},
		"not dead":             {notDead, ops.ErrNotDead},
		"positions of a queue": {queue, ops.ErrQueue},
		"a consumer":           {badConsumer, inbox.ErrInvalid},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", name, c.err, c.want)
		}
	}

	tx := begin(t, pool)
	twice := outbox.Event{Type: "order.placed", Payload: 1, IdempotencyKey: "1042"}
	err := outbox.Write(ctx, tx, twice, twice)
	if duplicate, ok := errors.AsType[*pgconn.PgError](err); !ok || duplicate.Code != "23505" {
		t.Errorf("a key twice: %v", err)
	}
}

// writeOne commits an event, and returns its id.
func writeOne(t *testing.T, pool *pgxpool.Pool) (id int64) {
	t.Helper()
	write(t, pool, outbox.Event{Type: "order.placed", Payload: 1})
	if err := pool.QueryRow(t.Context(), "SELECT max(id) FROM outbox_events").Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

// begin begins a transaction, which the end of the test rolls back.
func begin(t *testing.T, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	return tx
}

// TestMarks: a program that calls handlers itself reads what their errors say.
func TestMarks(t *testing.T) {
	t.Parallel()
	cause := errors.New("the cause")
	for name, c := range map[string]struct {
		err  error
		want func(error) bool
	}{
		"permanent":    {delivery.Permanent(cause), delivery.IsPermanent},
		"unavailable":  {delivery.Unavailable(cause), delivery.IsUnavailable},
		"unauthorized": {delivery.Unauthorized(cause), func(err error) bool { return delivery.IsUnauthorized(err) && delivery.IsUnavailable(err) }},
		"throttled":    {delivery.Throttled(time.Second, cause), delivery.IsThrottled},
		"retry": {delivery.RetryAfter(time.Second, cause), func(err error) bool {
			after, ok := delivery.RetryDelay(err)
			return ok && after == time.Second
		}},
	} {
		if err := errors.Join(errors.New("another"), c.err); !c.want(err) || !errors.Is(err, cause) {
			t.Errorf("%s: %v", name, err)
		}
		if c.want(cause) {
			t.Errorf("%s: an unmarked error has the mark", name)
		}
	}
}
