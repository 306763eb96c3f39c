// Package tracing sends the daemon's spans and metrics to an OpenTelemetry collector, as the
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

// New returns a provider that sends its spans in the background, and logs when
// they do not arrive. The OTEL_* variables of the process, which [Wanted] has
// checked, configure the exporter, the sampler, the limits and the resource. New
// does not connect. The caller calls Shutdown, which sends the spans that are
// left.
func New(ctx context.Context, version string, log *slog.Logger) (*sdktrace.TracerProvider, error) {
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}

	described, err := describe(ctx, version)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("tracing: %w", err), exporter.Shutdown(ctx))
	}

	sender := sdktrace.WithBatcher(&loggingExporter{SpanExporter: exporter, log: log})
	return sdktrace.NewTracerProvider(sender, sdktrace.WithResource(described)), nil
}

// describe returns the resource of spans and metrics.
func describe(ctx context.Context, version string) (*resource.Resource, error) {
	described, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "notifyd"), attribute.String("service.version", version)),
		resource.WithHost(), resource.WithTelemetrySDK(), resource.WithFromEnv()) // the last one wins
	if errors.Is(err, resource.ErrPartialResource) {
		err = nil
	}
	return described, err //nolint:wrapcheck // both callers wrap it
}

// loggingExporter logs errors that the SDK would write to standard error, once
// per outage. The processor calls it from one goroutine at a time.
type loggingExporter struct {
	sdktrace.SpanExporter
	log  *slog.Logger
	lost int // spans, since the last span that arrived
}

// ExportSpans implements sdktrace.SpanExporter.
func (e *loggingExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	switch {
	case err != nil && e.lost == 0:
		e.log.WarnContext(ctx, "spans not sent", "err", err)
		e.lost += len(spans)
	case err != nil:
		e.lost += len(spans)
	case e.lost > 0:
		e.log.InfoContext(ctx, "spans sent again", "lost", e.lost)
		e.lost = 0
	}
	return nil // the log has it
}
