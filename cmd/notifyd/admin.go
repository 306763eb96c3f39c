package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/notifyd/notifyd/internal/admin"
	"github.com/notifyd/notifyd/internal/config"
)

// shown is what the admin server shows.
type shown struct {
	checks []admin.Check
	live   func() error
	// register adds the metrics. ctx bounds the queries of every scrape.
	register func(ctx context.Context, registry *prometheus.Registry)
	// console makes the console, nil if there is none.
	console func(ctx context.Context) (*webConsole, error)
}

// startAdmin serves metrics, health and the console until stop is called, if the
// configuration asks for it.
func startAdmin(ctx context.Context, c *config.Config, path string, s shown, log *slog.Logger) (stop func(), err error) {
	if c.Admin.Listen == "" {
		return func() {}, nil
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // answers while the relay stops
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildMetric())
	s.register(ctx, registry)
	serve := admin.Config{
		Address: c.Admin.Listen, Version: readBuildInfo().Version, Metrics: registry, Checks: s.checks, Live: s.live,
		TLS: adminFiles(c, path), Token: c.Admin.Token, Pprof: c.Admin.Pprof,
	}
	look, err := s.console(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	if look != nil {
		serve.Console = look
	}
	server, err := admin.Listen(ctx, serve, log)
	if err != nil {
		cancel()
		look.close()
		return nil, err
	}
	log.InfoContext(ctx, "admin server", "listen", server.Addr(), "tls", c.Admin.TLS.CertFile != "", "token", !c.Admin.Token.IsZero(),
		"pprof", c.Admin.Pprof, "console", c.Admin.Console)
	if !c.Admin.Token.IsZero() && c.Admin.TLS.CertFile == "" && !c.Admin.Local() {
		log.WarnContext(ctx, "admin.token is sent unencrypted to admin.listen, which other machines reach: set admin.tls")
	}
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
		look.close()
	}, nil
}

// adminFiles are the files of the server's certificate, named relative to the
// configuration file.
func adminFiles(c *config.Config, path string) admin.Files {
	absolute := func(file string) string {
		if file == "" || filepath.IsAbs(file) {
			return file
		}
		return filepath.Join(filepath.Dir(path), file)
	}
	return admin.Files{Cert: absolute(c.Admin.TLS.CertFile), Key: absolute(c.Admin.TLS.KeyFile)}
}

// adminAccess is the access to the admin server of the relay that the configuration describes. Without admin.listen its
// address is empty.
func adminAccess(c *config.Config, path string) admin.Access {
	return admin.Access{Address: c.Admin.Listen, CertFile: adminFiles(c, path).Cert, Token: c.Admin.Token}
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
// a restart of the relay would not fix it.
func checks(relay *live) []admin.Check {
	return []admin.Check{
		{Name: "started", Do: func() error {
			select {
			case <-relay.Ready():
				return nil
			default:
				return errors.New("the table has not been read yet")
			}
		}},
		{Name: "database", Do: func() error {
			h := relay.Health()
			h.Hangs = nil // they have a line of their own
			return h.Ready()
		}},
		{Name: "relay", Do: func() error {
			h := relay.Health()
			h.DatabaseDown = false // the check of the database reports it
			return h.Ready()
		}},
		{Name: "listener", Advisory: true, Do: func() error {
			if len(relay.Health().Hangs) > 0 {
				return errors.New("not checked while the relay hangs")
			}
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
