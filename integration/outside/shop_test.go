package shop

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/outbox"
	"github.com/notifyd/notifyd/outbox/outboxtest"
	outboxsql "github.com/notifyd/notifyd/sql"
)

type order struct {
	Email string `json:"email"`
}

// place is the code of the shop: the order and its event, in one transaction.
func place(ctx context.Context, tx pgx.Tx, id string, o order) error {
	if _, err := tx.Exec(ctx, "INSERT INTO orders (id, email) VALUES ($1, $2)", id, o.Email); err != nil {
		return err
	}
	return outbox.WriteTo(ctx, tx, "box", outbox.Event{
		Type: "order.placed", AggregateType: "order", AggregateID: id, Payload: o, Headers: map[string]string{"tenant": "north"}, IdempotencyKey: id,
	})
}

// shop returns a pool on a database of a shop, with its outbox in the schema "box".
func shop(t *testing.T, mode outboxsql.Mode) *pgxpool.Pool {
	t.Helper()
	pool := migrated(t, "box", mode)
	if _, err := pool.Exec(t.Context(), "CREATE TABLE orders (id text PRIMARY KEY, email text NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	return pool
}

// run runs a relay until the test ends, or stop is called.
func run(t *testing.T, relay *notifyd.Relay) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	stop = func() error {
		cancel()
		return <-done
	}
	select {
	case <-relay.Ready():
	case err := <-done:
		t.Fatalf("the relay ended: %v", err)
	}
	return stop
}

// observer keeps incidents.
type observer chan delivery.Incident

func (o observer) Observe(i delivery.Incident) { o <- i }

// deliveries counts what a relay has delivered.
func deliveries(s observe.Stats) (n uint64) {
	for _, d := range s.Destinations {
		n += d.Delivered
	}
	return n
}

// TestShop writes an event in a separate transaction, and handles it with Go functions.
func TestShop(t *testing.T) {
	t.Parallel()
	for _, mode := range []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			pool := shop(t, mode)
			incidents := make(observer, 10)
			relay, err := notifyd.New(pool, notifyd.Config{Schema: "box", Observer: incidents})
			if err != nil {
				t.Fatal(err)
			}
			var begun []string
			relay.Use(delivery.Around(func(ctx context.Context, e *delivery.Event) (context.Context, *delivery.Event, func(error)) {
				begun = append(begun, e.Destination)
				return ctx, e, func(error) {}
			}))
			got := make(chan *delivery.Event, 1)
			mail := delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
				var o order
				if err := e.DecodeJSON(&o); err != nil {
					return err
				}
				if o.Email == "" {
					return delivery.Permanent(errors.New("the order has no address"))
				}
				got <- e
				return nil
			})
			if err := errors.Join(
				relay.Add(notifyd.Destination{Name: "mail", Handler: mail, Lane: delivery.Lane{Backoff: delivery.Backoff{Initial: time.Minute}, Concurrency: 1}, Filter: func(c *delivery.Candidate) (bool, error) { return c.Headers["tenant"] == "north", nil }}),
				relay.RouteWhen("order.*", func(c *delivery.Candidate) (bool, error) { return c.AggregateType == "order", nil }, "mail"),
			); err != nil {
				t.Fatal(err)
			}
			stop := run(t, relay)
			src := outboxtest.Pgx(pool).In("box").Now(t)
			err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return place(t.Context(), tx, "1042", order{"ann@example.com"}) })
			if err != nil {
				t.Fatal(err)
			}
			if e := <-got; e.Type != "order.placed" || e.AggregateID != "1042" || e.Attempt != 1 || e.Destination != "mail" || e.DedupeID() != "1" {
				t.Errorf("delivered %+v", e)
			}
			outboxtest.Delivered(t, src, time.Minute)

			err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return place(t.Context(), tx, "1043", order{}) })
			if err != nil {
				t.Fatal(err)
			}
			if i := <-incidents; i.Kind != delivery.IncidentDead || i.Destination != "mail" || i.EventType != "order.placed" {
				t.Errorf("the incident is %+v", i)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
			if n := deliveries(relay.Stats()); n != 1 || !slices.Equal(begun, []string{"mail", "mail"}) {
				t.Errorf("%d deliveries, attempts of %q", n, begun)
			}
		})
	}
}

// TestShopInTransaction is a test of the shop that commits nothing, while another one commits into the same tables.
func TestShopInTransaction(t *testing.T) {
	t.Parallel()
	pool := shop(t, outboxsql.ModeQueue)
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return place(t.Context(), tx, "7", order{"bob@example.com"}) })
	if err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // nothing is kept
	if err := place(t.Context(), tx, "1042", order{"ann@example.com"}); err != nil {
		t.Fatal(err)
	}
	src := outboxtest.Pgx(tx).In("box")
	e := outboxtest.Exactly(t, src, outboxtest.All(outboxtest.Type("order.placed"), outboxtest.Key("1042"), outboxtest.Header("tenant", "north")))[0]
	if o := outboxtest.Decode[order](t, e); !strings.HasPrefix(o.Email, "ann@") {
		t.Errorf("the order is %+v", o)
	}
	outboxtest.WroteNone(t, src, outboxtest.Aggregate("order", "7"))

	refused := errors.New("refused")
	var relay outboxtest.Relay
	relay.Handle(t, "mail", "order.*", delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return delivery.Unavailable(refused) }))
	delivered, err := relay.Deliver(t, src)
	if len(delivered) != 1 || delivered[0].AggregateID != "1042" || !errors.Is(err, refused) || !delivery.IsUnavailable(err) {
		t.Errorf("delivered %v: %v", delivered, err)
	}
}
