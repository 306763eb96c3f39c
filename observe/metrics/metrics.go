// Package metrics exports the figures of a relay to Prometheus.
//
// Names begin with notifyd_, units are seconds, bytes and ratios, and labels are
// the name of the destination and values of a fixed list. docs/metrics.md lists
// all metrics.
package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/notifyd/notifyd/observe"
)

// Source supplies the figures; *notifyd.Relay is one.
type Source interface {
	// Stats returns the current figures.
	Stats() observe.Stats
	// Listening reports whether notifications are heard.
	Listening() bool
	// Waiting returns the backlog in the tables.
	Waiting(ctx context.Context) (observe.Backlog, error)
}

// queryTimeout bounds the query for the backlog: a scrape must not hang because the
// database does.
const queryTimeout = 2 * time.Second

// Collector is a prometheus.Collector for a relay. It keeps no state: every
// scrape reads the relay's own counters, and queries the backlog in the database,
// by index and with a bound on the rows that are read.
type Collector struct {
	source Source
	ctx    context.Context //nolint:containedctx // Collect has no parameter for it
	gauges map[string]*prometheus.Desc
}

// NewCollector returns a collector, which the caller registers. ctx bounds the
// queries of every scrape.
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
	ctx, cancel := context.WithTimeout(c.ctx, queryTimeout)
	defer cancel()
	if b, err := c.source.Waiting(ctx); err == nil {
		out.backlog(&b, &s)
	}
}

// truth converts a condition to 1 or 0.
func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

var _ prometheus.Collector = (*Collector)(nil)
