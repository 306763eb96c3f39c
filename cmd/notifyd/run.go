package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/systemd"
)

func newRunCmd(a *app) *cobra.Command {
	var untilIdle bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Deliver events until stopped",
		Long: `run delivers the events of the outbox table to the destinations of the
configuration file. It waits for a database or a destination that is down.

SIGTERM and SIGINT stop it in order: running deliveries may finish within
relay.shutdown_timeout, the rest is given back. A second signal ends it at once.
SIGHUP makes it read the configuration again; a file with mistakes changes nothing.
The OTEL_* variables of OpenTelemetry make it send a span for each attempt.

With --until-idle it delivers what waits, and ends by itself once nothing is due and
no delivery runs: for cron, systemd timers and Kubernetes CronJobs. It waits for retries
that are due within 5 seconds, and neither for later ones nor for dead letters, paused
destinations and events without a route.

It exits with 0 after a clean stop or when it is idle, 1 after a failure, and 78 if the configuration
is wrong.`,
		Example: "  notifyd run\n  notifyd run -c /etc/notifyd/config.yaml --log-level debug\n  notifyd run --until-idle",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, path, err := a.load()
			if err != nil {
				return err
			}
			log := newLogger(cmd.ErrOrStderr(), c.Log)
			cli.StandardLog(log)
			for _, w := range c.Warnings {
				log.WarnContext(cmd.Context(), "configuration", "warning", w.String())
			}
			ctx, reloads, stop := untilSignalOrReload(cmd.Context(), log)
			defer stop()
			sd, err := systemd.New(a.lookup)
			if err != nil {
				log.WarnContext(ctx, "the service manager cannot be notified of everything", "err", err)
			}
			from := origin{path: path, started: time.Now(), untilIdle: untilIdle}
			return a.runRelay(ctx, c, from, sd, log, reloads)
		},
	}
	cmd.Flags().BoolVar(&untilIdle, "until-idle", false, "end once nothing is due and no delivery runs")
	return cmd
}

// runRelay builds the configured relay, and runs it and its successors after reloads.
func (a *app) runRelay(ctx context.Context, c *config.Config, from origin, sd *systemd.Notifier, log *slog.Logger, reloads <-chan struct{}) error {
	spans, err := startTracing(ctx, a.lookup, log)
	if err != nil {
		return err
	}
	defer spans.stop(ctx)
	if err := checkURLs(c, from.path); err != nil {
		return err
	}
	load := func() (*config.Config, error) { return a.loadAt(from.path, "") }
	return newSupervisor(c, from, load, a.stderr, spans, sd, log).run(ctx, reloads)
}

// relayConfig returns the settings of the relay: those of the file, and those of this process.
func relayConfig(c *config.Config, from origin, listen *pgx.ConnConfig, observer delivery.Observer, log *slog.Logger) notifyd.Config {
	relay := c.Relay
	relay.Retention = c.Retention
	field.Literal(&relay) // in the file 0 means 0
	field.Literal(&relay.Retention)
	relay.Schema, relay.Outbox, relay.Logger, relay.Observer, relay.ListenConfig = c.Database.Schema, from.outbox, log, observer, listen
	relay.UntilIdle, relay.Program = from.untilIdle, from.program()
	return relay
}

// addDestinations opens the handlers and registers them with their routes. The
// closers are to be closed even if there is an error.
func addDestinations(relay *notifyd.Relay, c *config.Config, open opener, spans *tracer) (closers []io.Closer, err error) {
	for _, d := range c.Destinations {
		h, closer, err := open("", d)
		if err != nil {
			return closers, c.Wrong(d.Name, err)
		}
		closers = append(closers, closer)
		if err := relay.Add(notifyd.Destination{Name: d.Name, Handler: h, Lane: d.Lane.Lane, RateKey: d.Key(), Middleware: spans.of(d)}); err != nil {
			return closers, err
		}
	}
	for _, r := range c.Routes {
		var when delivery.Filter
		if f := r.Filter(); f != nil {
			when = f.Match
		}
		if err := relay.RouteWhen(r.Match, when, r.To...); err != nil {
			return closers, err
		}
	}
	return closers, nil
}

func closeAll(closers []io.Closer) error {
	var errs []error
	for _, c := range closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// newLogger returns the configured logger.
func newLogger(w io.Writer, c config.Log) *slog.Logger { return cli.NewLogger(w, c.Level, c.Format) }
