package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/notifyd/notifyd/internal/admin"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/observe/metrics"
)

// labelOutbox is the label of the metrics of one of many outboxes.
const labelOutbox = "outbox"

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

// shown is what the admin server shows of all outboxes.
func (f *fleet) shown() shown {
	return shown{
		checks: f.checks(), live: f.Live,
		register: func(ctx context.Context, registry *prometheus.Registry) {
			f.registry = outboxRegistry{ctx, registry, f.scrapes}
			registry.MustRegister(fleetCollector{f})
			registry.MustRegister(f.state.metrics()...)
		},
		console: func(context.Context) (*webConsole, error) { return nil, nil }, //nolint:nilnil // none
	}
}

// outboxRegistry has the metrics of each outbox, with its name in a label. The zero value has none.
type outboxRegistry struct {
	ctx      context.Context //nolint:containedctx // of the scrapes
	registry *prometheus.Registry
	limit    chan struct{}
}

// register adds the metrics of an outbox.
func (r outboxRegistry) register(name string, relay *live) error {
	if r.registry == nil {
		return nil
	}
	return r.of(name).Register(r.collector(relay)) //nolint:wrapcheck // a bug
}

// unregister removes the metrics of an outbox that is gone; they are recognised by their descriptions.
func (r outboxRegistry) unregister(name string, relay *live) {
	if r.registry != nil && relay != nil {
		r.of(name).Unregister(r.collector(relay))
	}
}

func (r outboxRegistry) of(name string) prometheus.Registerer {
	return prometheus.WrapRegistererWith(prometheus.Labels{labelOutbox: name}, r.registry)
}

func (r outboxRegistry) collector(relay *live) prometheus.Collector {
	return metrics.NewCollector(r.ctx, scraped{relay, r.limit})
}

// fleetCollector says which outboxes there are.
type fleetCollector struct{ f *fleet }

const (
	upName    = "notifyd_outbox_up"
	upHelp    = "1 if the outbox is relayed, 0 if its tables or its database are not there or the relay hangs. One for each outbox of a daemon that has many."
	foundName = "notifyd_outboxes_found"
	foundHelp = "1 if the last query for outboxes succeeded and each of its rows describes one; 0 before the first one has ended. Only of a daemon that has many."
)

// Describe implements prometheus.Collector.
func (c fleetCollector) Describe(to chan<- *prometheus.Desc) {
	to <- prometheus.NewDesc(upName, upHelp, []string{labelOutbox}, nil)
	to <- prometheus.NewDesc(foundName, foundHelp, nil, nil)
}

// Collect implements prometheus.Collector.
func (c fleetCollector) Collect(to chan<- prometheus.Metric) {
	up := prometheus.NewDesc(upName, upHelp, []string{labelOutbox}, nil)
	for _, m := range c.f.all() {
		to <- prometheus.MustNewConstMetric(up, prometheus.GaugeValue, truth(m.health() == nil), m.name)
	}
	found := prometheus.NewDesc(foundName, foundHelp, nil, nil)
	to <- prometheus.MustNewConstMetric(found, prometheus.GaugeValue, truth(c.f.listing() == nil))
}

// listing returns why the outboxes could not be listed, or not all of them; nil if they could.
func (f *fleet) listing() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wrong == nil && !f.known {
		return errUnlisted
	}
	return f.wrong
}

// errUnlisted is the state before the first query has ended.
var errUnlisted = errors.New("the outboxes have not been listed yet")

// checks are the conditions of readiness. An outbox that is down does not make the others useless, so that
// only when none is relayed the daemon is not ready.
func (f *fleet) checks() []admin.Check {
	return []admin.Check{
		{Name: "started", Do: f.working},
		{Name: "outboxes", Advisory: true, Do: f.listing},
		{Name: "outbox", Advisory: true, Do: func() error {
			var down []error
			for _, m := range f.all() {
				if err := m.health(); err != nil {
					down = append(down, fmt.Errorf("%s: %s", m.name, oneLine(err)))
				}
			}
			return errors.Join(down...)
		}},
		f.state.check(),
	}
}

// working returns an error if no outbox is relayed although there are some, or it is not known which.
func (f *fleet) working() error {
	all := f.all()
	for _, m := range all {
		if m.health() == nil {
			return nil
		}
	}
	switch err := f.listing(); {
	case len(all) > 0:
		return fmt.Errorf("none of %s is relayed", count(len(all), "outbox"))
	case err != nil:
		return err
	default:
		return nil
	}
}

// Live implements managed: it returns why only a restart is likely to help, if that is so for an outbox.
func (f *fleet) Live() error {
	var lost []error
	for _, m := range f.all() {
		if err := m.lost(); err != nil {
			lost = append(lost, fmt.Errorf("outbox %s: %w", m.name, err))
		}
	}
	return errors.Join(lost...)
}

// Ready is closed once an outbox is relayed.
func (f *fleet) Ready() <-chan struct{} { return f.ready }

// Status implements managed.
func (f *fleet) Status() string {
	var down []string
	all := f.all()
	for _, m := range all {
		if m.health() != nil {
			down = append(down, m.name)
		}
	}
	text := fmt.Sprintf("delivering from %d of %s", len(all)-len(down), count(len(all), "outbox"))
	if len(down) > 0 {
		down = down[:min(len(down), shownNames)]
		text += "; down: " + strings.Join(down, ", ")
	}
	return text
}
