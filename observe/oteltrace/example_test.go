package oteltrace_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/notifyd/notifyd/observe/oteltrace"
	"github.com/notifyd/notifyd/outbox"
)

// The event carries the span of the request to its receivers.
func ExampleWrite() {
	// In a program the provider has an exporter, and middleware starts the span.
	provider := sdktrace.NewTracerProvider()
	ctx, span := provider.Tracer("shop").Start(context.Background(), "place order")
	defer span.End()

	// In a program: pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return placeOrder(ctx, tx, "1042") })
	tx := &keep{}
	if err := placeOrder(ctx, tx, "1042"); err != nil {
		fmt.Println(err)
	}
	fmt.Println("event and span belong together:", strings.Contains(tx.headers, span.SpanContext().SpanID().String()))
	// Output:
	// event and span belong together: true
}

func placeOrder(ctx context.Context, tx pgx.Tx, id string) error {
	return oteltrace.Write(ctx, tx, outbox.Event{Type: "order.placed", Payload: map[string]string{"id": id}})
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
