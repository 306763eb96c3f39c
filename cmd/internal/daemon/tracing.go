package daemon

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/destinations"
	"github.com/notifyd/notifyd/cmd/internal/tracing"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/observe/oteltrace"
)

// tracingShutdown is how long the last spans may take to be sent when the daemon
// stops: an unreachable collector must not hold it up.
const tracingShutdown = 5 * time.Second

// tracer makes a span of every attempt, from the start of the daemon to its end;
// nil makes none. A reload does not change it: the environment of a process stays.
type tracer struct {
	provider *sdktrace.TracerProvider
	log      *slog.Logger
}

// startTracing returns nil where the environment asks for no traces. The caller
// calls stop, on whatever is returned.
func startTracing(ctx context.Context, lookup func(string) (string, bool), version string, log *slog.Logger) (*tracer, error) {
	wanted, err := tracing.Wanted(lookup)
	if err != nil {
		return nil, &cli.EnvironmentError{Err: err}
	}
	if !wanted {
		return nil, nil //nolint:nilnil // tracing is off
	}

	provider, err := tracing.New(ctx, version, log)
	if err != nil {
		return nil, err
	}

	log.InfoContext(ctx, "tracing started")
	return &tracer{provider, log}, nil
}

// startMetrics sends the metrics of the registry to a collector, if the environment requests that, until stop is called.
// It never delays a delivery: a collector that is down costs metrics, and one line of the log.
func startMetrics(
	ctx context.Context, lookup func(string) (string, bool), from prometheus.Gatherer, version string, log *slog.Logger,
) (stop func(), err error) {
	wanted, err := tracing.WantedMetrics(lookup)
	switch {
	case err != nil:
		return nil, &cli.EnvironmentError{Err: err}
	case !wanted:
		return func() {}, nil
	}

	provider, err := tracing.NewMetrics(ctx, from, version, log)
	if err != nil {
		return nil, err
	}

	log.InfoContext(ctx, "metrics started")
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tracingShutdown)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			log.WarnContext(ctx, "last metrics not sent", "err", err)
		}
	}, nil
}

// of returns the middleware that makes spans of the attempts at d.
func (t *tracer) of(d config.Destination) []delivery.Middleware {
	if t == nil {
		return nil
	}

	attributes := []attribute.KeyValue{attribute.String("notifyd.destination.type", d.Type)}
	if system := destinations.MessagingSystem(d.Settings); system != "" {
		attributes = append(attributes, attribute.String("messaging.system", system))
	}

	if host, port := destinations.Server(d.Settings); host != "" {
		attributes = append(attributes, attribute.String("server.address", host))
		if port > 0 {
			attributes = append(attributes, attribute.Int("server.port", port))
		}
	}

	return []delivery.Middleware{oteltrace.Middleware(t.provider, attributes...)}
}

// stop sends the pending spans. Spans must not start after it.
func (t *tracer) stop(ctx context.Context) {
	if t == nil {
		return
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tracingShutdown) // ctx has ended: that is why it stops
	defer cancel()

	if err := t.provider.Shutdown(ctx); err != nil {
		t.log.WarnContext(ctx, "last spans not sent", "err", err)
	}
}
