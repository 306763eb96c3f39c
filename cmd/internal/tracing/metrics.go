package tracing

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/trace"
)

// NewMetrics returns a provider that sends the metrics of a gatherer in the background, and logs outages of the
// collector. The default interval is a minute. The OTEL_* variables of the process, which [WantedMetrics] has checked,
// configure the exporter and the interval. Metrics and spans have the same resource. NewMetrics does not connect. The
// caller calls Shutdown, which sends the metrics once more.
func NewMetrics(ctx context.Context, from prometheus.Gatherer, version string, log *slog.Logger) (*metric.MeterProvider, error) {
	exporter, err := otlpmetrichttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}

	described, err := describe(ctx, version)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}

	gatherer := prometheus.GathererFunc(tolerate(from.Gather, log))
	producer := bridge.NewMetricProducer(bridge.WithGatherer(gatherer))
	reader := metric.NewPeriodicReader(&loggingMetrics{Exporter: exporter, log: log}, metric.WithProducer(producer))
	return metric.NewMeterProvider(metric.WithReader(reader), metric.WithResource(described)), nil
}

// tolerate returns gather without its error, which it logs: the bridge would send nothing if one metric fails.
func tolerate[T any](gather func() (T, error), log *slog.Logger) func() (T, error) {
	return func() (T, error) {
		all, err := gather()
		if err != nil {
			log.Warn("metrics incomplete", "err", err)
		}
		return all, nil
	}
}

// loggingMetrics logs errors that the SDK would write to standard error, once per outage. The reader calls it from one
// goroutine at a time.
type loggingMetrics struct {
	metric.Exporter
	log  *slog.Logger
	lost int // exports, since the last one that arrived
}

// Export implements metric.Exporter.
func (e *loggingMetrics) Export(ctx context.Context, metrics *metricdata.ResourceMetrics) error {
	decodeTraces(metrics)
	err := e.Exporter.Export(ctx, metrics)
	switch {
	case errors.Is(context.Cause(ctx), context.Canceled): // by Shutdown, which exports the same metrics once more
	case err != nil && e.lost == 0:
		e.log.WarnContext(ctx, "metrics not sent", "err", err)
		e.lost++
	case err != nil:
		e.lost++
	case e.lost > 0:
		e.log.InfoContext(ctx, "metrics sent again", "lost", e.lost)
		e.lost = 0
	}
	return nil // the log has it
}

// decodeTraces makes the trace ids of exemplars 16 bytes, as OTLP has them: collectors refuse others. The bridge takes the
// hex digits of Prometheus for the bytes.
func decodeTraces(metrics *metricdata.ResourceMetrics) {
	for _, scope := range metrics.ScopeMetrics {
		for _, m := range scope.Metrics {
			h, is := m.Data.(metricdata.Histogram[float64])
			if !is {
				continue
			}

			for i := range h.DataPoints {
				for j := range h.DataPoints[i].Exemplars {
					e := &h.DataPoints[i].Exemplars[j]
					if id, err := hex.DecodeString(string(e.TraceID)); err == nil && len(id) == len(trace.TraceID{}) {
						e.TraceID = id
					}
				}
			}
		}
	}
}
