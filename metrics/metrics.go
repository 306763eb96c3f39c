// Package metrics offers the figures of a relay to Prometheus.
//
// Names begin with notifyd_, units are seconds, bytes and ratios, and labels are
// the name of the destination and words of a fixed list. docs/metrics.md lists them all.
package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/notifyd/notifyd/observe"
)

// Source is what the figures come from; *notifyd.Relay is one.
type Source interface {
	// Stats returns the figures of the moment.
	Stats() observe.Stats
	// Listening reports whether notifications are heard.
	Listening() bool
	// Waiting returns what waits in the tables.
	Waiting(ctx context.Context) (observe.Backlog, error)
}

// askTimeout bounds asking the database what waits: a scrape must not
// hang because the database does.
const askTimeout = 2 * time.Second

// Collector is a prometheus.Collector over a relay. It keeps no state: every
// scrape reads the relay's own counters, and asks the database what waits, by index
// and with a bound on the rows that are looked at.
type Collector struct {
	source Source
	ctx    context.Context //nolint:containedctx // Collect has no parameter for it
	gauges map[string]*prometheus.Desc
}

// NewCollector returns a collector to be registered by the caller. ctx bounds
// the life of what a scrape asks the database.
func NewCollector(ctx context.Context, source Source) *Collector {
	c := &Collector{source: source, ctx: ctx, gauges: make(map[string]*prometheus.Desc)}
	for _, f := range families() {
		c.gauges[f.name] = prometheus.NewDesc(f.name, f.help, f.labels, nil)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range c.gauges {
		to <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	out := output{gauges: c.gauges, to: to}
	s := c.source.Stats()
	for i := range s.Destinations {
		out.destination(&s.Destinations[i])
	}
	out.relay(&s)
	out.gauge("notifyd_listener_connected", truth(c.source.Listening()))
	ctx, cancel := context.WithTimeout(c.ctx, askTimeout)
	defer cancel()
	if b, err := c.source.Waiting(ctx); err == nil {
		out.backlog(&b, &s)
	}
}

// truth is how Prometheus spells a condition.
func truth(is bool) float64 { //nolint:revive // the value itself, not a switch
	if is {
		return 1
	}
	return 0
}

var _ prometheus.Collector = (*Collector)(nil)
