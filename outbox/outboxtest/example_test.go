package outboxtest_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/outbox"
	"github.com/notifyd/notifyd/outbox/outboxtest"
)

// The functions of this file are the tests of docs/testing.md, word by word.

type orderPlaced struct {
	Total float64 `json:"total"`
	Email string  `json:"email"`
}

// placeOrder is the code under test.
func placeOrder(ctx context.Context, tx pgx.Tx, id string, o orderPlaced) error {
	return outbox.Write(ctx, tx, outbox.Event{Type: "order.placed", AggregateType: "order", AggregateID: id, Payload: o},
		outbox.Event{Type: "stock.reserved", AggregateType: "order", AggregateID: id, Payload: map[string]int{"pieces": 1}})
}

func TestPlaceOrder(t *testing.T) {
	t.Parallel()
	tx := testTx(t) // rolled back when the test ends
	if err := placeOrder(t.Context(), tx, "1042", orderPlaced{Total: 12.5, Email: "ann@example.com"}); err != nil {
		t.Fatal(err)
	}
	e := outboxtest.Wrote(t, outboxtest.Pgx(tx), outboxtest.Type("order.placed"), outboxtest.Aggregate("order", "1042"),
		outboxtest.Contains(`{"total": 12.50}`))
	if o := outboxtest.Decode[orderPlaced](t, e); !strings.Contains(o.Email, "@") {
		t.Errorf("e-mail %q", o.Email)
	}
	outboxtest.WroteNone(t, outboxtest.Pgx(tx), outboxtest.Type("order.cancelled"))
	outboxtest.InOrder(t, outboxtest.Pgx(tx), outboxtest.Type("order.placed"), outboxtest.Type("stock.reserved"))
}

func TestMailOfAnOrder(t *testing.T) {
	t.Parallel()
	tx := testTx(t)
	var sentTo []string
	var relay outboxtest.Relay
	relay.Handle(t, "mail", "order.placed", delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		var o orderPlaced
		err := json.Unmarshal(e.Payload, &o)
		sentTo = append(sentTo, o.Email)
		return err
	}))
	err := placeOrder(t.Context(), tx, "1042", orderPlaced{Email: "ann@example.com"})
	if _, failed := relay.Deliver(t, outboxtest.Pgx(tx)); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	if len(sentTo) != 1 || sentTo[0] != "ann@example.com" {
		t.Errorf("sent to %q", sentTo)
	}
}

func TestOrdersEndToEnd(t *testing.T) {
	t.Parallel()
	pool := testPool(t) // a relay, of the test or outside of it, delivers from this database
	src := outboxtest.Pgx(pool).Now(t)
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return placeOrder(t.Context(), tx, "1042", orderPlaced{Total: 12.5})
	})
	if err != nil {
		t.Fatal(err)
	}
	outboxtest.Delivered(t, src, 30*time.Second) // fails at once if a delivery becomes a dead letter
}
