// Package admin serves the health, the metrics and the web console of relays in a Go program.
//
// [New] returns an [http.Handler] with the endpoints of the admin server of notifyd:
//
//   - /livez answers 503 if only a restart of the program is likely to help;
//   - /readyz answers 200 while the relay works, and with ?verbose lists the checks;
//   - /metrics has the metrics of package observe/metrics;
//   - /version is the version of the program;
//   - /console/ is the web console, if Config.Console is set.
//
// With Config.Token, /metrics, /version and the details of /readyz need the header Authorization: Bearer TOKEN. Without it they
// are open to every client that reaches the handler, and a console is refused. A request over loopback must then name this
// machine as its host: a page of another site, whose name leads here, cannot read the answers.
//
// Time-outs, and bounds on headers and connections, are settings of the program's [http.Server].
package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/admin"
	"github.com/notifyd/notifyd/observe/metrics"
)

// Config has the settings of a [Handler]. The zero Config serves health and metrics, without a token.
type Config struct {
	// Prefix is the path below which clients see the endpoints, such as "/ops"; "" for none. The handler answers requests with
	// and without it, so it does not matter whether http.StripPrefix or a proxy cuts it off. The links of the console have it.
	Prefix string
	// Token is the token for everything but /livez and the short answer of /readyz, and the one to log in to the console with: 16
	// characters or more. A console needs one.
	Token handlers.Secret
	// Metrics has other metrics to serve at /metrics, such as prometheus.DefaultGatherer; nil for none.
	Metrics prometheus.Gatherer
	// Console is the web console; nil for none.
	Console *Console
	// Logger gets the logins and the actions at the console; nil for none.
	Logger *slog.Logger
}

// Handler serves the endpoints. It is safe for concurrent use.
type Handler struct {
	http    http.Handler
	console *runningConsole // nil for none
	relays  []*notifyd.Relay
	stop    context.CancelFunc
}

// New returns a handler for relays, which need not run yet. If there are several, each has a different Config.Outbox: its metrics
// have it as the label outbox, and the console begins with a list of them.
func New(cfg Config, relays ...*notifyd.Relay) (*Handler, error) {
	if err := cfg.validate(relays); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}

	ctx, stop := context.WithCancel(context.Background()) //nolint:forbidigo // it lives until Close
	h := &Handler{relays: relays, stop: stop}
	own, err := h.registry(ctx)
	if err != nil {
		stop()
		return nil, err
	}

	serve := admin.Config{Prefix: cfg.Prefix, Metrics: own, Version: h.version(), Live: h.live, Checks: h.checks()}
	if cfg.Metrics != nil {
		serve.Metrics = prometheus.Gatherers{own, cfg.Metrics}
	}

	if !cfg.Token.IsZero() {
		serve.Token = admin.NewVerifier(cfg.Token)
	}

	if cfg.Console != nil {
		h.console, err = cfg.Console.open(&cfg, serve.Version, relays)
		if err != nil {
			stop()
			return nil, fmt.Errorf("admin: %w", err)
		}
		serve.Console = h.console
	}

	h.http = admin.Handler(serve)

	return h, nil
}

// validate returns every mistake in c, joined.
func (c *Config) validate(relays []*notifyd.Relay) error {
	var errs []error
	if len(relays) == 0 {
		errs = append(errs, errors.New("no relay: give at least one"))
	}

	names := make(map[string]bool)
	for _, r := range relays {
		name := r.Config().Outbox
		if len(relays) > 1 && (name == "" || names[name]) {
			errs = append(errs, fmt.Errorf("the outbox %q of several relays: give each relay a Config.Outbox of its own", name))
		}
		names[name] = true
	}

	errs = append(errs, admin.CheckPrefix("Prefix", c.Prefix), admin.CheckToken("Token", c.Token))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	return nil
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.http.ServeHTTP(w, r) }

// Close ends the streams of the console, for which http.Server.Shutdown would wait, and the replays started there. Register it
// with http.Server.RegisterOnShutdown. The relays keep running. A second call does nothing.
func (h *Handler) Close() {
	h.stop()
	if h.console != nil {
		h.console.close()
	}
}

// many reports whether the relays have names.
func (h *Handler) many() bool { return len(h.relays) > 1 }

// registry returns the metrics of the relays. ctx bounds their queries.
func (h *Handler) registry(ctx context.Context) (*prometheus.Registry, error) {
	all := prometheus.NewRegistry()
	for _, r := range h.relays {
		var to prometheus.Registerer = all
		if h.many() {
			to = prometheus.WrapRegistererWith(prometheus.Labels{"outbox": r.Config().Outbox}, all)
		}
		if err := to.Register(metrics.NewCollector(ctx, r)); err != nil {
			return nil, fmt.Errorf("admin: metrics: %w", err)
		}
	}
	return all, nil
}

// version returns the version of the program, as the first relay has it.
func (h *Handler) version() string { return h.relays[0].Config().Program.Version }

// live returns why only a restart is likely to help, or nil.
func (h *Handler) live() error {
	var errs []error
	for _, r := range h.relays {
		health := r.Health()
		errs = append(errs, health.Live())
	}
	return errors.Join(errs...)
}

// checks are the conditions of readiness, and advice.
func (h *Handler) checks() []admin.Check {
	if h.many() {
		return h.checksOfMany()
	}
	return admin.RelayChecks(h.relays[0].Ready(), h.relays[0])
}

// checksOfMany returns one condition, that any relay works: a failed relay does not make the program unready.
func (h *Handler) checksOfMany() []admin.Check {
	return []admin.Check{
		{Name: "started", Do: func() error {
			for _, r := range h.relays {
				if admin.Works(r) == nil {
					return nil
				}
			}
			return fmt.Errorf("none of %d relays works", len(h.relays))
		}},
		{Name: "outbox", Advisory: true, Do: func() error {
			var down []error
			for _, r := range h.relays {
				if err := admin.Works(r); err != nil {
					down = append(down, fmt.Errorf("%s: %w", r.Config().Outbox, err))
				}
			}
			return errors.Join(down...)
		}},
	}
}
