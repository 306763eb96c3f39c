package oteloutbox_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/notifyd/notifyd/outbox"
	"github.com/notifyd/notifyd/outbox/oteloutbox"
)

// The span of the request goes with the event, and so to whoever gets it.
func ExampleWrite() {
	provider := sdktrace.NewTracerProvider() // in a program: with an exporter
	ctx, span := provider.Tracer("shop").Start(context.Background(), "place order") // mostly the work of a middleware
	defer span.End()

	placeOrder := func(tx pgx.Tx, id string) error {
		return oteloutbox.Write(ctx, tx, outbox.Event{Type: "order.placed", Payload: map[string]string{"id": id}})
	}
	// In a program: pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return placeOrder(tx, "1042") })
	tx := &keep{}
	if err := placeOrder(tx, "1042"); err != nil {
		fmt.Println(err)
	}
	fmt.Println("event and span belong together:", strings.Contains(tx.headers, span.SpanContext().SpanID().String()))
	// Output:
	// event and span belong together: true
}

// keep is a transaction that keeps the headers of an event.
type keep struct {
	pgx.Tx
	headers string
}

func (k *keep) Exec(_ context.Context, _ string, args ...any) (pgconn.CommandTag, error) {
	k.headers = fmt.Sprint(args[5])
	return pgconn.CommandTag{}, nil
}
