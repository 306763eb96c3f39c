package main

import (
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/cmd/internal/daemon"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/internal/cli"
)

func newRunCmd(a *command.App) *cobra.Command {
	var untilIdle bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Deliver events until stopped",
		Long: `run delivers the events of the outbox table to the destinations of the
configuration file. It waits for a database or a destination that is down.

SIGTERM and SIGINT stop it in order: running deliveries may finish within
relay.shutdown_timeout, the rest is released. A second signal ends it at once.
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
			hangups := catchHangups()        // a reload may be requested before the configuration is read
			if a.LogFormat.Value == "json" { // mistakes of the file, too
				a.Log = cli.NewLogger(cmd.ErrOrStderr(), "info", "json")
			}
			c, path, err := a.Load()
			if err != nil {
				return err
			}

			log := cli.NewLogger(cmd.ErrOrStderr(), c.Log.Level, c.Log.Format)
			cli.StandardLog(log)
			if _, isJSON := log.Handler().(*slog.JSONHandler); isJSON {
				a.Log = log
			}

			for _, w := range c.Warnings {
				log.WarnContext(cmd.Context(), "configuration", "warning", w.String())
			}

			ctx, reloads, stop := untilSignalOrReload(cmd.Context(), log, hangups)
			defer stop()

			return daemon.Run(ctx, daemon.Options{
				Config:    c,
				Path:      path,
				Load:      func() (*config.Config, error) { return a.LoadAt(path, "") },
				Lookup:    a.Lookup,
				Version:   readBuildInfo().Version,
				Started:   time.Now(),
				UntilIdle: untilIdle,
				Log:       log,
				Logs:      a.Stderr,
				Reloads:   reloads,
			})
		},
	}

	cmd.Flags().BoolVar(&untilIdle, "until-idle", false, "end once nothing is due and no delivery runs")
	return cmd
}
