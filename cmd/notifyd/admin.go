package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/internal/admin"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/console"
	"github.com/notifyd/notifyd/metrics"
)

// startAdmin serves metrics and health until stop is called, if the
// configuration asks for it.
func startAdmin(ctx context.Context, c *config.Config, relay *notifyd.Relay, pool *pgxpool.Pool, log *slog.Logger) (stop func(), err error) {
	if c.Admin.Listen == "" {
		return func() {}, nil
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // answers while the relay stops
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.NewCollector(ctx, relay), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildMetric())
	serve := admin.Config{Address: c.Admin.Listen, Version: readBuildInfo().Version, Metrics: registry, Checks: checks(relay)}
	look, err := newConsole(c, relay, pool, log)
	if look != nil {
		serve.Console = look
	}
	var server *admin.Server
	if err == nil {
		server, err = admin.Listen(ctx, serve, log)
	}
	if err != nil {
		cancel()
		return nil, err
	}
	log.InfoContext(ctx, "admin server", "listen", server.Addr())
	var running sync.WaitGroup
	if look != nil {
		running.Go(func() { look.Run(ctx) })
	}
	running.Go(func() {
		if err := server.Run(ctx); err != nil {
			log.ErrorContext(ctx, "the admin server has ended", "err", err)
		}
	})
	return func() {
		cancel()
		running.Wait()
	}, nil
}

// newConsole makes the console, nil if the configuration asks for none.
func newConsole(c *config.Config, relay *notifyd.Relay, pool *pgxpool.Pool, log *slog.Logger) (*console.Console, error) {
	if !c.Admin.Console {
		return nil, nil //nolint:nilnil // none is what was asked for
	}
	return console.New(console.Config{
		Relay: relay, Pauser: relay, Pool: pool, Schema: c.Database.Schema, DeleteEvents: c.Retention.Keep == 0,
		ReadOnly: c.Admin.ReadOnly, HidePayloads: c.Admin.Payloads == "hidden", Version: readBuildInfo().Version, Log: log,
	})
}

func buildMetric() prometheus.Collector {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "notifyd_build_info", Help: "Always 1; the labels say what was built.",
	}, []string{"version", "go_version"})
	b := readBuildInfo()
	g.WithLabelValues(b.Version, b.Go).Set(1)
	return g
}

// checks are the conditions of readiness. A destination that is down is none:
// restarting the relay would not mend it.
func checks(relay *notifyd.Relay) []admin.Check {
	return []admin.Check{
		{Name: "started", Do: func() error {
			select {
			case <-relay.Ready():
				return nil
			default:
				return errors.New("the table has not been looked at yet")
			}
		}},
		{Name: "database", Do: func() error {
			if relay.Stats().DatabaseDown {
				return errors.New("the database does not answer")
			}
			return nil
		}},
		{Name: "listener", Advisory: true, Do: func() error {
			l := relay.Stats().Listener
			if l == nil || l.Listening && l.Trouble == nil {
				return nil
			}
			if l.Trouble == nil {
				return errors.New("it does not listen yet")
			}
			return fmt.Errorf("events are found by polling: %w", l.Trouble)
		}},
	}
}
