// Package oteloutbox writes events as package outbox does, each with the trace of
// its writer: the span in the context becomes the event's headers traceparent and
// tracestate (W3C Trace Context), and deliveries and consumers continue its
// trace. It has the same functions as package outbox: changing the import is
// enough.
//
// It needs the API of OpenTelemetry and no SDK. Package outbox needs neither: an
// application without traces gets no dependency.
package oteloutbox

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
		if named(e.Headers, parent) {
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

// parent is the header that identifies a trace.
const parent = "traceparent"

// named reports whether headers have a name, in any case.
func named(headers map[string]string, name string) bool {
	for other := range headers {
		if strings.EqualFold(other, name) {
			return true
		}
	}
	return false
}
