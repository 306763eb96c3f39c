// Package oteltrace traces events with OpenTelemetry, from their writers to their receivers. It needs the API of OpenTelemetry
// and no SDK.
//
// # Writers
//
//	oteltrace.Write(ctx, tx, outbox.Event{Type: "order.placed", Payload: order})
//
// [Write] and the other functions mirror package outbox, and add the trace of their context: its span becomes the event's
// headers traceparent and tracestate (W3C Trace Context), and deliveries and consumers continue its trace. Package outbox
// alone has no dependency.
//
// # Relays
//
//	relay.Use(oteltrace.Middleware(otel.GetTracerProvider()))
//
// Each attempt is a span. If the event has a header traceparent (W3C Trace
// Context), the writer's span is the parent of the attempt's span, and is linked
// from it. The event that goes out carries the traceparent of the attempt
// instead, so consumers continue the trace. A relay without the middleware passes
// the writer's traceparent on unchanged, at no cost.
package oteltrace

import (
	"context"
	"errors"
	"maps"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/notifyd/notifyd/delivery"
)

// scope names the instrumentation.
const scope = "github.com/notifyd/notifyd/observe/oteltrace"

// Middleware returns a middleware that wraps a handler in spans of the given
// provider. A BatchHandler gets a span per event, each as long as the call; spans
// that the handler starts in such a call begin a trace of their own. Each span
// has the given attributes in addition to those of its event.
func Middleware(provider trace.TracerProvider, attributes ...attribute.KeyValue) delivery.Middleware {
	t := tracer{provider.Tracer(scope), attributes}
	return delivery.Around(func(ctx context.Context, e *delivery.Event) (context.Context, *delivery.Event, func(error)) {
		ctx, span, sent := t.begin(ctx, e)
		return ctx, sent, func(err error) { end(span, err) }
	})
}

type tracer struct {
	trace.Tracer
	attributes []attribute.KeyValue // of every span
}

// begin starts the span of an attempt. The event it returns is a copy that
// carries the span; handlers of a fan-out share the headers of the original.
func (t tracer) begin(ctx context.Context, e *delivery.Event) (context.Context, trace.Span, *delivery.Event) {
	format := propagation.TraceContext{}
	ctx = format.Extract(ctx, headers(e.Headers))

	attributes := append(make([]attribute.KeyValue, 0, 11+len(t.attributes)),
		attribute.String("messaging.system", "notifyd"),
		attribute.String("messaging.operation.name", "deliver"),
		attribute.String("messaging.operation.type", "send"),
		attribute.String("messaging.destination.name", e.Destination),
		attribute.String("messaging.message.id", e.DedupeID()),
		attribute.Int("messaging.message.body.size", len(e.Payload)),
		attribute.String("notifyd.event.type", e.Type),
		attribute.Int64("notifyd.event.id", e.ID),
		attribute.Int("notifyd.attempt", e.Attempt),
	)
	if e.AggregateID != "" {
		attributes = append(attributes,
			attribute.String("notifyd.aggregate.type", e.AggregateType),
			attribute.String("notifyd.aggregate.id", e.AggregateID))
	}

	options := append(make([]trace.SpanStartOption, 0, 3), trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(append(attributes, t.attributes...)...))

	// Also a link: hours after its parent has ended, some backends no longer show the
	// attempt below it.
	if writer := trace.SpanContextFromContext(ctx); writer.IsRemote() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: writer}))
	}

	ctx, span := t.Start(ctx, "deliver "+e.Destination, options...)
	if !span.SpanContext().IsValid() {
		return ctx, span, e // a no-op provider
	}

	out := *e
	out.Headers = make(map[string]string, len(e.Headers)+2)
	maps.Copy(out.Headers, e.Headers)
	for name := range e.Headers {
		if isContext(name) { // whatever its case: only one may remain
			delete(out.Headers, name)
		}
	}

	format.Inject(ctx, headers(out.Headers))
	if span.IsRecording() {
		out.OnAck(func(a delivery.Ack) { acknowledged(span, a) })
	}

	return ctx, span, &out
}

// acknowledged adds to the span of an attempt where the event is.
func acknowledged(span trace.Span, a delivery.Ack) {
	span.SetAttributes(attribute.String("messaging.destination.partition.id", a.Partition))
	if a.Offset >= 0 {
		span.SetAttributes(attribute.Int64("messaging.kafka.offset", a.Offset))
	}
}

func isContext(name string) bool {
	return strings.EqualFold(name, "traceparent") || strings.EqualFold(name, "tracestate")
}

// end ends the span of an attempt with its answer.
func end(span trace.Span, err error) {
	if err != nil {
		class := delivery.ClassEvent
		switch {
		case delivery.IsUnavailable(err), delivery.IsThrottled(err):
			class = delivery.ClassDestination
		case errors.Is(err, context.Canceled):
			class = delivery.ClassRelay
		}
		span.SetAttributes(attribute.String("error.type", class.String()), attribute.Bool("notifyd.permanent", delivery.IsPermanent(err)))
		span.SetStatus(codes.Error, shortened(err.Error()))
	}
	span.End()
}

// maxError bounds the text of an error in a span, in bytes.
const maxError = 1000

func shortened(text string) string {
	if len(text) > maxError {
		text = strings.ToValidUTF8(text[:maxError], "")
	}
	return text
}

// headers are the headers of an event, for the propagator. Names are found in any case.
type headers map[string]string

// Get implements propagation.TextMapCarrier.
func (h headers) Get(name string) string {
	if value, ok := h[name]; ok {
		return value
	}
	for other, value := range h {
		if strings.EqualFold(other, name) {
			return value
		}
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (h headers) Set(name, value string) { h[name] = value }

// Keys implements propagation.TextMapCarrier.
func (h headers) Keys() []string {
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	return names
}
