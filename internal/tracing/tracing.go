// Package tracing sends the daemon's spans to an OpenTelemetry collector, as the
// standard OTEL_* variables say.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// New returns a provider that sends its spans in the background, and tells log
// when they do not arrive. The exporter, the sampler, the limits and the resource
// are configured by the OTEL_* variables of the process, which [Wanted] has found
// to be right. It does not connect. The caller calls Shutdown, which sends what is
// left.
func New(ctx context.Context, version string, log *slog.Logger) (*sdktrace.TracerProvider, error) {
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	described, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "notifyd"), attribute.String("service.version", version)),
		resource.WithHost(), resource.WithTelemetrySDK(), resource.WithFromEnv()) // the last one wins
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, errors.Join(fmt.Errorf("tracing: %w", err), exporter.Shutdown(ctx))
	}
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(&telling{SpanExporter: exporter, log: log}), sdktrace.WithResource(described)), nil
}

// telling tells the log what the SDK would write to standard error, once for an
// outage. The processor calls it from one goroutine at a time.
type telling struct {
	sdktrace.SpanExporter
	log  *slog.Logger
	lost int // spans, since the last that arrived
}

// ExportSpans implements sdktrace.SpanExporter.
func (t *telling) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := t.SpanExporter.ExportSpans(ctx, spans)
	switch {
	case err != nil && t.lost == 0:
		t.log.WarnContext(ctx, "spans cannot be sent: deliveries go on, their traces are lost", "err", err)
		t.lost += len(spans)
	case err != nil:
		t.lost += len(spans)
	case t.lost > 0:
		t.log.InfoContext(ctx, "spans are sent again", "lost", t.lost)
		t.lost = 0
	}
	return nil // it has been told
}
