package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// eventType is the type of all events of a bench.
const eventType = "bench.event"

// payloadBytes is the default size of a payload.
const payloadBytes = 256

// freshColumns are the columns of an event that a relay reads in its claims.
const freshColumns = `SELECT id, event_type, aggregate_type, aggregate_id, payload, headers, created_at,
	(extract(epoch FROM available_at - clock_timestamp()) * 1000000)::bigint, traceparent FROM outbox_events WHERE state = 'fresh'`

// insertSQL inserts one event; $1 is the payload.
func insertSQL(schema string) string {
	return "INSERT INTO " + table(schema) + " (event_type, payload) VALUES ('" + eventType + "', $1)"
}

// in returns the quoted name of a table or index in a schema.
func in(schema, name string) string { return pgx.Identifier{schema, name}.Sanitize() }

// table returns the quoted name of a schema's table of events.
func table(schema string) string { return in(schema, "outbox_events") }

// deliveries returns the quoted name of a schema's table of stored deliveries.
func deliveries(schema string) string { return in(schema, "outbox_deliveries") }

// payload returns a JSON string of n bytes that PostgreSQL cannot compress.
func payload(n int) string {
	const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"
	text := make([]byte, max(n, 2))
	for i := range text {
		text[i] = digits[rand.IntN(len(digits))] //nolint:gosec // filling
	}
	text[0] = '"'
	text[len(text)-1] = '"'
	return string(text)
}

// drained waits until all events of the schema are settled, at most settleWithin.
func (e *Env) drained(ctx context.Context, schema string, mode outboxsql.Mode) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settleWithin, fmt.Errorf("events were left after %v", settleWithin))
	defer cancel()
	for {
		left, err := e.unsettled(ctx, schema, mode)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil || left == 0:
			return err
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}
