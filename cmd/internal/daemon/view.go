package daemon

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/notifyd/notifyd/internal/admin"
	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/observe/metrics"
)

// view is read by the admin server and the service manager. It shows details of the only outbox, or a summary of many.
type view struct{ s *supervisor }

// shownDown bounds the names in the status for the service manager.
const shownDown = 30

// labelOutbox is the label of the metrics of one of many outboxes.
const labelOutbox = "outbox"

func newRegistry(version string) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		buildMetric(version),
	)
	return registry
}

func buildMetric(version string) prometheus.Collector {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "notifyd_build_info", Help: "Always 1; the labels say what was built.",
	}, []string{"version", "go_version"})
	g.WithLabelValues(version, runtime.Version()).Set(1)
	return g
}

// scraped is a relay for a scrape. The queries of all relays together have a few connections at a time.
type scraped struct {
	*live

	limit chan struct{}
}

// Waiting implements metrics.Source.
func (s scraped) Waiting(ctx context.Context) (observe.Backlog, error) {
	select {
	case s.limit <- struct{}{}:
	case <-ctx.Done():
		return observe.Backlog{}, context.Cause(ctx)
	}
	defer func() { <-s.limit }()
	return s.live.Waiting(ctx)
}

// outboxMetrics has the metrics of each relay: with the name of its outbox in a label, where there are many.
type outboxMetrics struct {
	registry *prometheus.Registry
	many     bool
	limit    chan struct{}   // bounds the connections of a scrape
	ctx      context.Context //nolint:containedctx // of the queries of a scrape, which have no other
}

// register adds the metrics of an outbox.
func (o *outboxMetrics) register(name string, relay *live) error {
	return o.of(name).Register(o.collector(relay)) //nolint:wrapcheck // a bug
}

// unregister removes the metrics of an outbox that is gone; they are recognised by their descriptions.
func (o *outboxMetrics) unregister(name string, relay *live) {
	if relay != nil {
		o.of(name).Unregister(o.collector(relay))
	}
}

func (o *outboxMetrics) of(name string) prometheus.Registerer {
	if !o.many {
		return o.registry
	}
	return prometheus.WrapRegistererWith(prometheus.Labels{labelOutbox: name}, o.registry)
}

func (o *outboxMetrics) collector(relay *live) prometheus.Collector {
	return metrics.NewCollector(o.ctx, scraped{relay, o.limit})
}

// outboxCollector says which outboxes there are.
type outboxCollector struct{ s *supervisor }

const (
	upName = "notifyd_outbox_up"
	upHelp = "1 if the outbox is relayed, 0 if its tables or its database are not there or the relay hangs. " +
		"One for each outbox of a daemon that has many."
	foundName = "notifyd_outboxes_found"
	foundHelp = "1 if the last query for outboxes succeeded and each of its rows describes one; 0 before the first one has ended. " +
		"Only of a daemon that has many."
)

// Describe implements prometheus.Collector.
func (c outboxCollector) Describe(to chan<- *prometheus.Desc) {
	to <- prometheus.NewDesc(upName, upHelp, []string{labelOutbox}, nil)
	to <- prometheus.NewDesc(foundName, foundHelp, nil, nil)
}

// Collect implements prometheus.Collector.
func (c outboxCollector) Collect(to chan<- prometheus.Metric) {
	up := prometheus.NewDesc(upName, upHelp, []string{labelOutbox}, nil)
	for _, m := range c.s.all() {
		to <- prometheus.MustNewConstMetric(up, prometheus.GaugeValue, truth(m.health() == nil), m.name)
	}

	found := prometheus.NewDesc(foundName, foundHelp, nil, nil)
	to <- prometheus.MustNewConstMetric(found, prometheus.GaugeValue, truth(c.s.listing() == nil))
}

// errUnlisted is the state before the first query has ended.
var errUnlisted = errors.New("the outboxes have not been listed yet")

// checks are the conditions of readiness, and advice.
func (v view) checks() []admin.Check {
	if v.s.many {
		return append(v.checksOfMany(), v.s.state.check())
	}
	return append(admin.RelayChecks(v.s.ready, v.s.only()), v.s.state.check())
}

// checksOfMany: an outbox that is down does not make the others useless, so that only when none is relayed the
// daemon is not ready.
func (v view) checksOfMany() []admin.Check {
	return []admin.Check{
		{Name: "started", Do: v.working},
		{Name: "outboxes", Advisory: true, Do: v.s.listing},
		{Name: "outbox", Advisory: true, Do: func() error {
			var down []error
			for _, m := range v.s.all() {
				if err := m.health(); err != nil {
					down = append(down, fmt.Errorf("%s: %s", m.name, cli.OneLine(err)))
				}
			}
			return errors.Join(down...)
		}},
	}
}

// working returns an error if no outbox is relayed although there are some, or it is not known which.
func (v view) working() error {
	all := v.s.all()
	for _, m := range all {
		if m.health() == nil {
			return nil
		}
	}

	switch err := v.s.listing(); {
	case len(all) > 0:
		return fmt.Errorf("none of %s is relayed", cli.Count(len(all), "outbox"))
	case err != nil:
		return err
	default:
		return nil
	}
}

// Live implements managed: it returns why only a restart is likely to help, if that is so for an outbox.
func (v view) Live() error { return v.s.errors((*member).lost) }

// Ready is closed once an outbox is relayed.
func (v view) Ready() <-chan struct{} { return v.s.ready }

// Status implements managed.
func (v view) Status() string {
	if relay := v.s.only(); relay != nil {
		return statusOf(relay.Stats())
	}

	var down []string
	all := v.s.all()
	for _, m := range all {
		if m.health() != nil {
			down = append(down, m.name)
		}
	}

	text := fmt.Sprintf("delivering from %d of %s", len(all)-len(down), cli.Count(len(all), "outbox"))
	if len(down) > 0 {
		down = down[:min(len(down), shownDown)]
		text += "; down: " + strings.Join(down, ", ")
	}
	return text
}

// Metrics returns the collectors of the daemon itself, without those of its relays. Tests compare documents with it.
func Metrics() []prometheus.Collector {
	return append((&reloadState{}).metrics(), buildMetric(""), outboxCollector{})
}
