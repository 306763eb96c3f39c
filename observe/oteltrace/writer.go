package oteltrace

import (
	"context"
	"maps"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/notifyd/notifyd/outbox"
)

// Write is [outbox.Write] with the trace of ctx.
func Write[R any](ctx context.Context, tx outbox.Tx[R], events ...outbox.Event) error {
	return outbox.Write(ctx, tx, Events(ctx, events...)...)
}

// WriteTo is [outbox.WriteTo] with the trace of ctx.
func WriteTo[R any](ctx context.Context, tx outbox.Tx[R], schema string, events ...outbox.Event) error {
	return outbox.WriteTo(ctx, tx, schema, Events(ctx, events...)...)
}

// WriteSQL is [outbox.WriteSQL] with the trace of ctx.
func WriteSQL(ctx context.Context, tx outbox.SQLTx, events ...outbox.Event) error {
	return outbox.WriteSQL(ctx, tx, Events(ctx, events...)...)
}

// WriteSQLTo is [outbox.WriteSQLTo] with the trace of ctx.
func WriteSQLTo(ctx context.Context, tx outbox.SQLTx, schema string, events ...outbox.Event) error {
	return outbox.WriteSQLTo(ctx, tx, schema, Events(ctx, events...)...)
}

// Events returns the events with the trace of ctx, for [outbox.Statement]. An event with a
// header traceparent, in any case, keeps it. The given events and headers are not changed;
// without a span in ctx, Events returns the given events. A span that is not sampled is
// passed on with that decision.
func Events(ctx context.Context, events ...outbox.Event) []outbox.Event {
	if len(events) == 0 || !trace.SpanContextFromContext(ctx).IsValid() {
		return events
	}

	fields := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, fields)

	all := make([]outbox.Event, len(events))
	copy(all, events)
	for i := range all {
		e := &all[i]
		if hasTrace(e.Headers) {
			continue
		}

		headers := make(map[string]string, len(e.Headers)+len(fields))
		maps.Copy(headers, e.Headers)
		// A tracestate belongs to its traceparent: one of another trace is removed.
		maps.DeleteFunc(headers, func(name, _ string) bool { return strings.EqualFold(name, "tracestate") })
		maps.Copy(headers, fields)
		e.Headers = headers
	}

	return all
}

// hasTrace reports whether headers identify a trace, in any case.
func hasTrace(all map[string]string) bool {
	for name := range all {
		if strings.EqualFold(name, "traceparent") {
			return true
		}
	}
	return false
}
