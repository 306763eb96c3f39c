package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/notifyd/notifyd/internal/admin"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/systemd"
	"github.com/notifyd/notifyd/observe/metrics"
)

// supervisor runs one generation after the other.
type supervisor struct {
	load  func() (*config.Config, error)
	from  origin
	out   io.Writer      // of logs
	first *config.Config // the configuration of the parts that outlive generations
	live  *live
	// console is the daemon's, nil for none; it follows reloads.
	console *webConsole
	state   *reloadState
	sd      *systemd.Notifier
	log     *slog.Logger // the running generation's

	left sync.WaitGroup // alerters of generations that are over
}

// newSupervisor prepares for running g, which was built from c.
func newSupervisor(g *generation, from origin, load func() (*config.Config, error), out io.Writer, sd *systemd.Notifier) *supervisor {
	return &supervisor{
		load: load, from: from, out: out, first: g.config, live: newLive(g.relay),
		state: &reloadState{success: true, read: time.Now()}, sd: sd, log: g.log,
	}
}

// run runs g, and with each reload the generation that takes its place, until
// ctx ends or one of them fails. It closes all of them.
func (s *supervisor) run(ctx context.Context, g *generation, reloads <-chan struct{}) error {
	defer s.left.Wait()
	var paused time.Time // when delivery was stopped for g; zero for the first generation
	for {
		next, stopped, err := s.serve(ctx, g, paused, reloads)
		// Handlers are closed before their successors are used: a producer with records
		// on their way must not be overtaken.
		closed := g.close()
		if next == nil {
			return errors.Join(err, closed, g.closeAlerts())
		}
		if closed != nil {
			s.log.WarnContext(ctx, "a destination was not closed cleanly", "err", closed)
		}
		old, log := g, s.log
		s.left.Go(func() { // its last alert holds up no delivery
			if err := old.closeAlerts(); err != nil {
				log.WarnContext(ctx, "the alerts before the reload were not closed cleanly", "err", err)
			}
		})
		s.live.replace(next.relay)
		g, paused = next, stopped
	}
}

// serve runs g until it ends by itself, by ctx, or because next is ready to
// take its place; then stopped is when the stop was requested.
func (s *supervisor) serve(ctx context.Context, g *generation, paused time.Time, reloads <-chan struct{}) (next *generation, stopped time.Time, err error) {
	inner, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- g.run(inner) }() // waited for in every way out
	if !paused.IsZero() {
		s.done(ctx, g)
	}
	ready := g.relay.Ready()
	for {
		select {
		case err := <-ended:
			return nil, stopped, err
		case <-ready:
			ready = nil
			s.live.delivers()
			if !paused.IsZero() {
				s.log.InfoContext(ctx, "the relay delivers with the new configuration", "paused", time.Since(paused))
			}
		case <-reloads:
			if next = s.prepare(ctx, g); next == nil {
				continue
			}
			stopped = time.Now()
			stop()
			if err := <-ended; err != nil || ctx.Err() != nil {
				// While the answer of a handler is outstanding, no generation can take its
				// place; and none has to when the daemon stops.
				return nil, stopped, errors.Join(err, next.close(), next.closeAlerts())
			}
			return next, stopped, nil
		}
	}
}

// prepare makes the next generation. After an error it logs the error and returns nil.
func (s *supervisor) prepare(ctx context.Context, g *generation) *generation {
	s.log.InfoContext(ctx, "reloading the configuration", "config", s.from.path)
	s.tell(ctx, func() error { return s.sd.Reloading(ctx, "reloading the configuration") })
	next, err := s.build(ctx, g)
	if ctx.Err() != nil { // the error does not matter any more
		if next != nil {
			_ = errors.Join(next.close(), next.closeAlerts())
		}
		return nil
	}
	if err == nil {
		return next
	}
	s.state.failed(err)
	s.log.ErrorContext(ctx, "the configuration is wrong: the relay continues with the previous one", "config", s.from.path, "err", oneLine(err))
	s.tell(ctx, func() error {
		return s.sd.Ready(ctx, "delivering with the previous configuration, because the reload failed: see the log")
	})
	if noted := g.relay.ReloadRefused(ctx, oneLine(err)); noted != nil { // last: it may take a while
		s.log.DebugContext(ctx, "the refusal of the reload cannot be written down", "err", noted)
	}
	return nil
}

// build reads the file and makes a generation that can take the place of g.
func (s *supervisor) build(ctx context.Context, g *generation) (*generation, error) {
	c, err := s.load()
	if err != nil {
		return nil, err
	}
	next, err := newGeneration(ctx, c, s.from, g.spans, newLogger(s.out, c.Log))
	if err != nil {
		return nil, err
	}
	elsewhere := slices.ContainsFunc(config.Diff(g.config, c).Settings, func(change config.Change) bool {
		return strings.HasPrefix(change.Path, "database.")
	})
	if err := next.check(ctx, !elsewhere); err != nil {
		return nil, errors.Join(err, next.close(), next.closeAlerts())
	}
	for _, w := range c.Warnings {
		next.log.WarnContext(ctx, "configuration", "warning", w.String())
	}
	next.changed = config.Diff(g.config, c).Names()
	return next, nil
}

// done reports that g has taken over.
func (s *supervisor) done(ctx context.Context, g *generation) {
	s.log = g.log
	restart := needRestart(s.first, g.config)
	s.state.succeeded(restart)
	if err := s.console.follow(ctx, g.config); err != nil {
		s.log.WarnContext(ctx, "the web console continues with the previous database: restart notifyd", "err", err)
	}
	s.log.InfoContext(ctx, "the configuration was reloaded", "config", s.from.path, "changed", g.changed)
	if len(restart) > 0 {
		s.log.WarnContext(ctx, "settings have changed that a reload cannot apply: restart notifyd", "settings", restart)
	}
	s.tell(ctx, func() error { return s.sd.Ready(ctx, "delivering") })
}

// tell notifies the service manager, unless the daemon is not ready: then READY=1 is
// still to come, and must not be sent for the reload.
func (s *supervisor) tell(ctx context.Context, say func() error) {
	select {
	case <-s.live.Ready():
		if err := say(); err != nil {
			s.log.DebugContext(ctx, "the service manager cannot be notified", "err", err)
		}
	default:
	}
}

// shown is what the admin server shows of the one outbox.
func (s *supervisor) shown(log *slog.Logger) shown {
	return shown{
		checks: append(checks(s.live), s.state.check()),
		live:   func() error { h := s.live.Health(); return h.Live() },
		register: func(ctx context.Context, registry *prometheus.Registry) {
			registry.MustRegister(metrics.NewCollector(ctx, s.live))
			registry.MustRegister(s.state.metrics()...)
		},
		console: func(ctx context.Context) (look *webConsole, err error) {
			look, err = newConsole(ctx, s.first, s.from.path, s.live, log)
			s.console = look
			return look, err
		},
	}
}

// needRestart returns the changed settings of parts that outlive reloads: those of the
// admin server.
func needRestart(first, c *config.Config) (settings []string) {
	for _, change := range config.Diff(first, c).Settings {
		if strings.HasPrefix(change.Path, "admin.") {
			settings = append(settings, change.Path)
		}
	}
	return settings
}

// oneLine is an error with all its mistakes, for a line of a log or a page.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// reloadState is the outcome of the last reload. It is safe for several goroutines.
type reloadState struct {
	mu      sync.Mutex
	success bool
	read    time.Time // when the configuration in force was read
	problem string    // "" for none
}

func (r *reloadState) failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.success, r.problem = false, "the last reload failed, the previous configuration is in force: "+oneLine(err)
}

func (r *reloadState) succeeded(restart []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.success, r.read, r.problem = true, time.Now(), ""
	if len(restart) > 0 {
		r.problem = "a restart is needed for " + strings.Join(restart, ", ")
	}
}

// check is a line of /readyz. The relay works, so that it is advice only.
func (r *reloadState) check() admin.Check {
	return admin.Check{Name: "configuration", Advisory: true, Do: func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.problem == "" {
			return nil
		}
		return errors.New(r.problem)
	}}
}

// metrics are the figures for Prometheus.
func (r *reloadState) metrics() []prometheus.Collector {
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			r.mu.Lock()
			defer r.mu.Unlock()
			return value()
		})
	}
	return []prometheus.Collector{
		gauge("notifyd_config_reload_success", "1 if the last reload of the configuration was successful, or there was none.",
			func() float64 { return truth(r.success) }),
		gauge("notifyd_config_reload_success_timestamp_seconds", "When the configuration in force was read, in seconds since 1970.",
			func() float64 { return float64(r.read.UnixMilli()) / 1000 }),
	}
}

// truth is a condition as a figure of Prometheus.
func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
