// Package metrics offers the figures of a relay to Prometheus.
//
// Names begin with notifyd_, units are seconds, bytes and ratios, and labels are
// the name of the destination and words of a fixed list. docs/metrics.md lists them all.
package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/notifyd/notifyd/dispatch"
)

// Source is what the figures come from; *notifyd.Relay is one.
type Source interface {
	// Stats returns the figures of the moment.
	Stats() dispatch.Stats
	// Listening reports whether notifications are heard.
	Listening() bool
	// OldestWaiting returns how long the event has waited that has waited longest.
	OldestWaiting(ctx context.Context) (time.Duration, error)
}

// askTimeout bounds asking the database for the oldest event: a scrape must not
// hang because the database does.
const askTimeout = 2 * time.Second

// Collector is a prometheus.Collector over a relay. It keeps no state: every
// scrape reads the relay's own counters, and asks the database one question.
type Collector struct {
	source Source
	ctx    context.Context //nolint:containedctx // Collect has no parameter for it
	gauges map[string]*prometheus.Desc
}

// family is one metric.
type family struct {
	name, help string
	labels     []string
}

// families are all metrics of a relay.
func families() []family {
	destination := []string{"destination"}
	return []family{
		{"notifyd_deliveries_total", "Answers of handlers, by outcome: delivered, failed (to be tried again), dead (given up), released (no attempt counted).", []string{"destination", "outcome"}},
		{"notifyd_destination_unavailable", "1 while the lane pauses because its destination is down.", destination},
		{"notifyd_destination_running", "Calls of the handler that are under way.", destination},
		{"notifyd_destination_queued", "Deliveries that wait in memory for a call.", destination},
		{"notifyd_destination_pace_seconds", "What an event takes a worker, on average.", destination},
		{"notifyd_destination_connected", "1 while the handler has a connection; only for handlers that tell.", destination},
		{"notifyd_destination_blocked", "1 while the destination has asked for a pause, as RabbitMQ does by connection.blocked; only for handlers that tell.", destination},
		{"notifyd_destination_unconfirmed", "Messages that are sent and not answered yet; only for handlers that tell.", destination},
		{"notifyd_claims_total", "Claims that found events or deliveries.", nil},
		{"notifyd_claimed_total", "Events and deliveries that were claimed.", nil},
		{"notifyd_fenced_total", "Answers that were refused because another relay had taken the delivery over.", nil},
		{"notifyd_bell_awake", "1 while the relay keeps the bell silent and sweeps.", nil},
		{"notifyd_listener_connected", "1 while notifications are heard, as far as is known.", nil},
		{"notifyd_listener_proof_age_seconds", "How long ago it was proven that notifications are heard: a canary came back. It grows while the relay sweeps, when nothing depends on it; absent before the first proof.", nil},
		{"notifyd_listener_lost_total", "Listening connections that were lost, or given up because a canary was not heard.", nil},
		{"notifyd_canary_round_trip_seconds", "How long the last canary took from being sent to being heard; absent before the first.", nil},
		{"notifyd_canaries_total", "Notifications that the relay sent itself for proof.", nil},
		{"notifyd_canary_failures_total", "Canaries that failed: unheard (in time), unsent.", []string{"reason"}},
		{"notifyd_database_up", "1 while the database answers.", nil},
		{"notifyd_oldest_waiting_seconds", "How long the event has waited that has waited longest; absent while the database does not answer.", nil},
	}
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
	send := func(kind prometheus.ValueType, name string, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(c.gauges[name], kind, value, labels...)
	}
	counter := func(name string, value uint64, labels ...string) {
		send(prometheus.CounterValue, name, float64(value), labels...)
	}
	gauge := func(name string, value float64, labels ...string) {
		send(prometheus.GaugeValue, name, value, labels...)
	}
	s := c.source.Stats()
	for _, d := range s.Destinations {
		counter("notifyd_deliveries_total", d.Delivered, d.Name, "delivered")
		counter("notifyd_deliveries_total", d.Failed, d.Name, "failed")
		counter("notifyd_deliveries_total", d.Dead, d.Name, "dead")
		counter("notifyd_deliveries_total", d.Released, d.Name, "released")
		gauge("notifyd_destination_unavailable", truth(d.Unavailable), d.Name)
		gauge("notifyd_destination_running", float64(d.Running), d.Name)
		gauge("notifyd_destination_queued", float64(d.Queued), d.Name)
		gauge("notifyd_destination_pace_seconds", d.Pace.Seconds(), d.Name)
		if r := d.Report; r != nil {
			gauge("notifyd_destination_connected", truth(r.Connected), d.Name)
			gauge("notifyd_destination_blocked", truth(r.Blocked), d.Name)
			gauge("notifyd_destination_unconfirmed", float64(r.Unconfirmed), d.Name)
		}
	}
	counter("notifyd_claims_total", s.Claims)
	counter("notifyd_claimed_total", s.Claimed)
	counter("notifyd_fenced_total", s.Fenced)
	gauge("notifyd_bell_awake", truth(s.Bell == "awake"))
	gauge("notifyd_listener_connected", truth(c.source.Listening()))
	if l := s.Listener; l != nil {
		counter("notifyd_listener_lost_total", l.Lost)
		counter("notifyd_canaries_total", l.Sent)
		counter("notifyd_canary_failures_total", l.Unheard, "unheard")
		counter("notifyd_canary_failures_total", l.Unsent, "unsent")
		if !l.Proven.IsZero() {
			gauge("notifyd_listener_proof_age_seconds", time.Since(l.Proven).Seconds())
			gauge("notifyd_canary_round_trip_seconds", l.RoundTrip.Seconds())
		}
	}
	gauge("notifyd_database_up", truth(!s.DatabaseDown))
	ctx, cancel := context.WithTimeout(c.ctx, askTimeout)
	defer cancel()
	if age, err := c.source.OldestWaiting(ctx); err == nil {
		gauge("notifyd_oldest_waiting_seconds", age.Seconds())
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
