package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/systemd"
)

func newRunCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Deliver events until told to stop",
		Long: `run delivers the events of the outbox table to the destinations of the
configuration file. It waits for a database or a destination that is down.

SIGTERM, SIGINT and SIGHUP stop it in order: running deliveries may finish within
relay.shutdown_timeout, what is left is given back. A second SIGTERM or SIGINT
ends it at once. It exits with 0 after a clean stop, 1 after a failure, and 78 if the
configuration is wrong.`,
		Example: "  notifyd run\n  notifyd run -c /etc/notifyd/config.yaml --log-level debug",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, path, err := a.load()
			if err != nil {
				return err
			}
			log := newLogger(cmd.ErrOrStderr(), c.Log)
			for _, w := range c.Warnings {
				log.WarnContext(cmd.Context(), "configuration", "warning", w.String())
			}
			ctx, stop := untilSignal(cmd.Context(), log)
			defer stop()
			sd, err := systemd.New(a.lookup)
			if err != nil {
				log.WarnContext(ctx, "the service manager is not told everything", "err", err)
			}
			return runRelay(ctx, c, path, sd, log)
		},
	}
}

// runRelay builds the relay that the configuration describes, and runs it.
func runRelay(ctx context.Context, c *config.Config, path string, sd *systemd.Notifier, log *slog.Logger) (err error) {
	poolConfig, err := parsePool(c, path)
	if err != nil {
		return err
	}
	listen, err := parseListen(c, path)
	if err != nil {
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return fmt.Errorf("database.url: %w", err)
	}
	defer pool.Close()
	alerts, err := newAlerts(c, log)
	defer func() { err = errors.Join(err, closeAll(alerts.closers)) }()
	if err != nil {
		return err
	}
	relay, err := notifyd.New(pool, append(relayOptions(c, listen, log), alerts.options()...)...)
	if err != nil {
		return err
	}
	closers, err := addDestinations(relay, c, log)
	defer func() { err = errors.Join(err, closeAll(closers)) }()
	if err != nil {
		return err
	}
	stopAdmin, err := startAdmin(ctx, c, relay, pool, log)
	if err != nil {
		return err
	}
	defer stopAdmin()
	logStart(ctx, c, path, poolConfig.ConnConfig, log)
	stopAlerts := alerts.start(ctx, relay)
	defer stopAlerts() // before the handlers are closed
	stopTelling := tellManager(ctx, sd, relay, log)
	defer stopTelling()
	return relay.Run(ctx)
}

// logStart says what is about to run, one line for each fact.
func logStart(ctx context.Context, c *config.Config, path string, db *pgx.ConnConfig, log *slog.Logger) {
	log.InfoContext(ctx, "notifyd starts", "version", readBuildInfo().Version, "config", path)
	log.InfoContext(ctx, "database", "host", db.Host, "port", db.Port, "database", db.Database, "user", db.User, "schema", c.Database.Schema)
	for _, d := range c.Destinations {
		log.InfoContext(ctx, "destination", "name", d.Name, "type", d.Type, "concurrency", d.Concurrency, "max_attempts", d.MaxAttempts)
	}
	for _, r := range c.Routes {
		log.InfoContext(ctx, "route", "match", r.Match, "to", r.To)
	}
}

func relayOptions(c *config.Config, listen *pgx.ConnConfig, log *slog.Logger) []notifyd.Option {
	options := []notifyd.Option{
		notifyd.WithSchema(c.Database.Schema),
		notifyd.WithLogger(log),
		notifyd.WithClaims(c.Relay.Connections),
		notifyd.WithClaimBatch(c.Relay.Batch),
		notifyd.WithClaimBytes(c.Relay.BatchBytes),
		notifyd.WithLockBudget(c.Relay.LockBudget),
		notifyd.WithLease(c.Relay.Lease),
		notifyd.WithPollInterval(c.Relay.PollInterval),
		notifyd.WithCanary(c.Relay.Canary),
		notifyd.WithShutdownTimeout(c.Relay.ShutdownTimeout),
		notifyd.WithRetention(c.Retention.Keep, c.Retention.Batch),
	}
	if listen != nil {
		options = append(options, notifyd.WithListenConfig(listen))
	}
	return options
}

// addDestinations opens the handlers and registers them with their routes. The
// closers are to be closed even if there is an error.
func addDestinations(relay *notifyd.Relay, c *config.Config, log *slog.Logger) (closers []io.Closer, err error) {
	for _, d := range c.Destinations {
		h, err := openDestination(d, log)
		if err != nil {
			return closers, err
		}
		if closer, ok := h.(io.Closer); ok {
			closers = append(closers, closer)
		}
		err = relay.Destination(d.Name, h,
			notifyd.Concurrency(d.Concurrency), notifyd.BatchSize(d.Batch), notifyd.Timeout(d.Timeout), notifyd.MaxAttempts(d.MaxAttempts),
			notifyd.WithBackoff(notifyd.Backoff{Initial: d.Backoff.Initial, Max: d.Backoff.Max, Multiplier: d.Backoff.Multiplier}))
		if err != nil {
			return closers, err
		}
	}
	for _, r := range c.Routes {
		if err := relay.Route(r.Match, r.To...); err != nil {
			return closers, err
		}
	}
	return closers, nil
}

// openDestination makes the handler that a destination describes.
func openDestination(d config.Destination, log *slog.Logger) (notifyd.Handler, error) {
	opener, ok := d.Settings.(destination)
	if !ok {
		return nil, fmt.Errorf("destination %q: type %q cannot be opened", d.Name, d.Type)
	}
	if l, ok := d.Settings.(logging); ok {
		l.logTo(log.With("destination", d.Name))
	}
	h, err := opener.open()
	if err != nil {
		return nil, fmt.Errorf("destination %q: %w", d.Name, err)
	}
	return h, nil
}

func closeAll(closers []io.Closer) error {
	var errs []error
	for _, c := range closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// untilSignal returns a context that ends with the first SIGTERM, SIGINT or
// SIGHUP; a second one ends the process, except for SIGHUP, of which a terminal
// that is closed may send several. stop gives the signals back.
func untilSignal(ctx context.Context, log *slog.Logger) (until context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	if !signal.Ignored(syscall.SIGHUP) { // as nohup has it
		signal.Notify(signals, syscall.SIGHUP)
	}
	done := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			select {
			case s := <-signals:
				if n > 0 && s == syscall.SIGHUP {
					continue
				}
				if n > 0 {
					log.ErrorContext(ctx, "second signal, exiting at once", "signal", s.String())
					os.Exit(exitFailure)
				}
				log.InfoContext(ctx, "stopping; a second signal exits at once", "signal", s.String())
				cancel()
			case <-done:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}

// newLogger returns the logger that the configuration asks for.
func newLogger(w io.Writer, c config.Log) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		level = slog.LevelInfo // the configuration was checked
	}
	options := &slog.HandlerOptions{Level: level}
	if c.Format == "text" || c.Format == "auto" && isTerminal(w) {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

// isTerminal reports whether a person is watching.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
