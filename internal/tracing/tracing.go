// Package tracing sends the daemon's spans to an OpenTelemetry collector, as the
// standard OTEL_* variables say.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// protocol is the one that is spoken.
const protocol = "http/protobuf"

// Wanted reports whether the environment asks for traces: OTEL_TRACES_EXPORTER is
// otlp, or an endpoint is set, and nothing says no. The error names a setting that
// cannot be kept to, and the cure.
func Wanted(lookup func(name string) (string, bool)) (bool, error) {
	get := func(name string) string {
		value, _ := lookup(name)
		return strings.TrimSpace(value)
	}
	if strings.EqualFold(get("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	endpoint := get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") + get("OTEL_EXPORTER_OTLP_ENDPOINT")
	switch exporter := get("OTEL_TRACES_EXPORTER"); {
	case exporter == "none", exporter == "" && endpoint == "":
		return false, nil
	case exporter != "" && exporter != "otlp":
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER: %q is not known: use otlp or none", exporter)
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if p := get(name); p == protocol {
			break
		} else if p != "" {
			return false, fmt.Errorf("%s: %q is not spoken: use %s, to port 4318 of a collector", name, p, protocol)
		}
	}
	return true, nil
}

// New returns a provider that sends its spans in the background. The exporter, the
// sampler, the limits and the resource are configured by the OTEL_* variables of
// the process. It does not connect. The caller calls Shutdown, which sends what is
// left.
func New(ctx context.Context, version string) (*sdktrace.TracerProvider, error) {
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
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(described)), nil
}
