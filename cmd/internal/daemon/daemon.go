package daemon

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/outboxes"
	"github.com/notifyd/notifyd/cmd/internal/systemd"
	"github.com/notifyd/notifyd/internal/cli"
)

// Options configure a daemon. All fields but UntilIdle and Reloads are required.
type Options struct {
	// Config is the configuration of the start, Path its file, and Load reads it again for a reload.
	Config *config.Config
	Path   string
	Load   func() (*config.Config, error)
	// Lookup reads the environment: that of the service manager and of OpenTelemetry.
	Lookup config.LookupEnv
	// Version and Started describe the process, for the table of relays and the admin server.
	Version string
	Started time.Time
	// UntilIdle ends the daemon once nothing is due and no delivery runs.
	UntilIdle bool
	// Log is the log of the start. Those that a reload makes are written to Logs.
	Log  *slog.Logger
	Logs io.Writer
	// Reloads has a value for each request to read the file again.
	Reloads <-chan struct{}
}

// Run delivers the events of the configured outboxes until ctx ends, or with UntilIdle until nothing is due. It returns
// nil after a clean stop. If a delivery did not end, the error wraps notifyd.ErrShutdownIncomplete. A mistake in the
// configuration is a *config.Error, a mistake in the environment a *cli.EnvironmentError.
func Run(ctx context.Context, o Options) error {
	sd, err := systemd.New(o.Lookup)
	if err != nil {
		o.Log.WarnContext(ctx, "service manager notifications limited", "err", err)
	}

	spans, err := startTracing(ctx, o.Lookup, o.Version, o.Log)
	if err != nil {
		return err
	}
	defer spans.stop(ctx)

	if err := outboxes.CheckURLs(o.Config); err != nil {
		return err
	}

	from := origin{path: o.Path, started: o.Started, version: o.Version, untilIdle: o.UntilIdle}
	s := newSupervisor(o.Config, from, o.Load, o.Logs, spans, sd, o.Log)

	stopMetrics, err := startMetrics(ctx, o.Lookup, s.metrics.registry, o.Version, o.Log)
	if err != nil {
		return err
	}
	defer stopMetrics()

	return s.run(ctx, o.Reloads)
}

// newLogger returns the log that a configuration asks for.
func newLogger(w io.Writer, c *config.Config) *slog.Logger {
	return cli.NewLogger(w, c.Log.Level, c.Log.Format)
}
