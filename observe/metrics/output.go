package metrics

import (
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
)

// output converts figures to metrics.
type output struct {
	gauges map[string]*prometheus.Desc
	to     chan<- prometheus.Metric
}

func (o output) counter(name string, value uint64, labels ...string) {
	o.to <- prometheus.MustNewConstMetric(o.gauges[name], prometheus.CounterValue, float64(value), labels...)
}

func (o output) gauge(name string, value float64, labels ...string) {
	o.to <- prometheus.MustNewConstMetric(o.gauges[name], prometheus.GaugeValue, value, labels...)
}

func (o output) histogram(name string, h *observe.Histogram, labels ...string) {
	buckets := make(map[float64]uint64, len(h.Buckets))
	var below uint64
	for i, bound := range observe.LatencyBounds() {
		below += h.Buckets[i]
		buckets[bound.Seconds()] = below
	}

	m := prometheus.MustNewConstHistogram(o.gauges[name], h.Count, h.Sum.Seconds(), buckets, labels...)
	if e := h.Exemplar; e.TraceID != "" {
		// Prometheus refuses an id that is too long. The histogram then has no exemplar.
		exemplar := prometheus.Exemplar{
			Value:     e.Duration.Seconds(),
			Labels:    prometheus.Labels{"trace_id": e.TraceID},
			Timestamp: e.At,
		}
		if with, err := prometheus.NewMetricWithExemplars(m, exemplar); err == nil {
			m = with
		}
	}
	o.to <- m
}

// destination exports the figures of one lane.
func (o output) destination(d *observe.DestinationStats) {
	outcomes := map[string]uint64{
		"delivered": d.Delivered,
		"failed":    d.Failed,
		"dead":      d.Dead,
		"released":  d.Released,
		"parked":    d.Parked,
	}
	for outcome, n := range outcomes {
		o.counter("notifyd_deliveries_total", n, d.Name, outcome)
	}

	for class, n := range d.Classes {
		word := "none"
		if class > 0 {
			word = delivery.Class(class).String()
		}
		o.counter("notifyd_attempts_total", n, d.Name, word)
	}

	o.counter("notifyd_not_begun_total", d.Refused, d.Name, "no_capacity")
	o.counter("notifyd_not_begun_total", d.Withdrawn, d.Name, "withdrawn")
	o.counter("notifyd_not_begun_total", d.Withheld, d.Name, "order")
	o.counter("notifyd_not_begun_total", d.RateLimits, d.Name, "rate_limit")
	o.counter("notifyd_not_begun_total", d.Expired, d.Name, "expired")
	o.counter("notifyd_filtered_total", d.Filtered, d.Name)

	o.histogram("notifyd_commit_to_handler_seconds", &d.Started, d.Name)
	o.histogram("notifyd_commit_to_ack_seconds", &d.Acked, d.Name)

	o.gauge("notifyd_destination_down", truth(d.Down), d.Name)
	o.gauge("notifyd_destination_paused", truth(d.Paused), d.Name)
	for _, state := range observe.BreakerStates() {
		o.gauge("notifyd_destination_state", truth(d.State == state), d.Name, state.String())
	}

	o.gauge("notifyd_destination_down_seconds", since(d.Trouble.DownSince), d.Name)
	o.gauge("notifyd_destination_next_probe_seconds", max(0, -since(d.Trouble.NextProbe)), d.Name)
	o.gauge("notifyd_destination_failing_events", float64(d.Trouble.Failures), d.Name)
	o.gauge("notifyd_destination_failing_seconds", since(d.Trouble.FailingSince), d.Name)
	o.gauge("notifyd_destination_throttled_gap_seconds", d.Gap.Seconds(), d.Name)
	o.gauge("notifyd_destination_throttled_seconds", max(0, -since(d.Trouble.ThrottledUntil)), d.Name)
	o.gauge("notifyd_destination_throttled_by_event", float64(d.Trouble.ThrottledBy), d.Name)

	o.counter("notifyd_throttled_total", d.Throttled, d.Name)
	o.gauge("notifyd_destination_rate_limited", truth(d.RateLimited), d.Name)

	o.gauge("notifyd_destination_running", float64(d.Running), d.Name)
	o.gauge("notifyd_destination_stuck", float64(d.Stuck), d.Name)
	o.gauge("notifyd_destination_queued", float64(d.Queued), d.Name)
	o.gauge("notifyd_destination_capacity", float64(d.Capacity), d.Name)
	o.gauge("notifyd_destination_aggregates", float64(d.Aggregates), d.Name)
	o.gauge("notifyd_destination_pace_seconds", d.Pace.Seconds(), d.Name)

	if r := d.Report; r != nil {
		o.gauge("notifyd_destination_connected", truth(r.Connected), d.Name)
		o.gauge("notifyd_destination_blocked", truth(r.Blocked), d.Name)
		o.gauge("notifyd_destination_unconfirmed", float64(r.Unconfirmed), d.Name)
	}
}

// since is the time since t in seconds, negative for one to come, 0 for none.
func since(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return time.Since(t).Seconds()
}

// relay exports the figures that belong to no destination.
func (o output) relay(s *observe.Stats) {
	if s.Mode == observe.ModeStream {
		o.positions(s)
	} else {
		o.claims(s)
	}

	o.counter("notifyd_fenced_total", s.Fenced)
	o.gauge("notifyd_notifications_suppressed", truth(s.WakeState == "polling"))
	for _, state := range []string{"listening", "polling", "settling"} {
		o.gauge("notifyd_wake_state", truth(s.WakeState == state), state)
	}

	o.listener(s.Listener)
	o.gauge("notifyd_database_up", truth(!s.DatabaseDown))

	refused := make(map[string]int)
	for _, r := range s.Refusals {
		refused[r.Code]++
	}
	for code, n := range refused {
		o.gauge("notifyd_database_refuses", float64(n), code)
	}

	o.gauge("notifyd_hangs", float64(len(s.Hangs)))
	for role, c := range byRole(s.Connections) {
		o.gauge("notifyd_connections", float64(c.Open), role)
		o.counter("notifyd_connections_opened_total", c.Opened, role)
	}
}

// positions exports the figures of the shards of a stream that the relay owns.
func (o output) positions(s *observe.Stats) {
	o.mode(observe.ModeStream)
	for _, p := range s.Positions {
		shard := strconv.Itoa(p.Shard)
		o.gauge("notifyd_position_head", float64(p.Head), p.Destination, shard)
		o.gauge("notifyd_position_open", float64(p.Open), p.Destination, shard)
		o.gauge("notifyd_position_gaps", float64(p.Ranges), p.Destination, shard)
		o.gauge("notifyd_position_open_ranges", float64(p.OpenRanges), p.Destination, shard)
		o.gauge("notifyd_position_gap_oldest_seconds", p.OldestGap.Seconds(), p.Destination, shard)
		o.gauge("notifyd_position_blocked_aggregates", float64(p.Blocked), p.Destination, shard)
		o.counter("notifyd_position_saves_total", p.Saved, p.Destination, shard)
	}
}

func (o output) mode(is string) {
	for _, mode := range []string{observe.ModeQueue, observe.ModeStream} {
		o.gauge("notifyd_mode", truth(is == mode), mode)
	}
}

// claims exports the figures that only a queue has.
func (o output) claims(s *observe.Stats) {
	o.mode(observe.ModeQueue)
	o.counter("notifyd_claims_total", s.Claims)
	o.counter("notifyd_claimed_total", s.Claimed)
	for source, queries := range map[string]observe.Asked{"ids": s.ByID, "sweep": s.Sweeps, "due": s.Due} {
		o.counter("notifyd_queries_total", queries.Count, source)
		o.counter("notifyd_query_failures_total", queries.Failed, source)
	}
	o.gauge("notifyd_leases_held", float64(s.Leases.Held))
	o.counter("notifyd_leases_granted_total", s.Leases.Granted)
	o.counter("notifyd_leases_renewed_total", s.Leases.Renewed)
	o.counter("notifyd_leases_lost_total", s.Leases.Lost)
	o.counter("notifyd_leases_taken_over_total", s.Leases.TakenOver)
}

// byRole adds up the connections that the pool and the relay have in one role.
func byRole(all []observe.ConnectionStats) map[string]observe.ConnectionStats {
	roles := make(map[string]observe.ConnectionStats, len(all))
	for _, c := range all {
		sum := roles[c.Role]
		sum.Open += c.Open
		sum.Opened += c.Opened
		roles[c.Role] = sum
	}
	return roles
}

func (o output) listener(l *observe.ListenerStats) {
	if l == nil {
		return
	}
	o.counter("notifyd_listener_lost_total", l.Lost)
	o.counter("notifyd_canaries_total", l.Sent)
	o.counter("notifyd_canary_failures_total", l.Overdue, "overdue")
	o.counter("notifyd_canary_failures_total", l.Unsent, "unsent")
	if !l.Proven.IsZero() {
		o.gauge("notifyd_listener_proof_age_seconds", time.Since(l.Proven).Seconds())
		o.gauge("notifyd_canary_round_trip_seconds", l.RoundTrip.Seconds())
	}
}

// backlog exports the backlog of the relay's destinations and of those that only
// the tables know.
func (o output) backlog(b *observe.Backlog, s *observe.Stats) {
	o.gauge("notifyd_oldest_waiting_seconds", age(b.Oldest))
	o.gauge("notifyd_missing_events", float64(b.Missing.N))
	o.gauge("notifyd_delayed_events", float64(b.Delayed.N))

	shown := make(map[string]bool, len(s.Destinations))
	for i := range s.Destinations {
		shown[s.Destinations[i].Name] = true
		o.waiting(b.Destination(s.Destinations[i].Name))
	}

	for _, d := range b.Destinations {
		if !shown[d.Name] {
			o.waiting(d)
		}
	}

	for i := range b.Positions {
		p := &b.Positions[i]
		shard := strconv.Itoa(p.Shard)
		// A relay that has the other destinations reports those.
		if shown[p.Destination] || p.Destination == "" {
			o.gauge("notifyd_position_unowned", truth(p.Session == nil), p.Destination, shard)
		}

		// The relay's own figures do not show where ids jump to another partition.
		owned := slices.ContainsFunc(s.Positions, func(own observe.PositionStats) bool {
			return own.Destination == p.Destination && own.Shard == p.Shard
		})
		if owned {
			o.gauge("notifyd_position_lag", float64(p.Lag), p.Destination, shard)
			if p.Replay != nil {
				o.gauge("notifyd_replay_remaining", float64(p.Replay.Remaining), p.Destination)
			}
		}
	}
}

func (o output) waiting(d observe.DestinationBacklog) {
	for state, n := range map[string]observe.Count{"fresh": d.Fresh, "retry": d.Retry, "running": d.Running, "parked": d.Parked} {
		o.gauge("notifyd_backlog_deliveries", float64(n.N), d.Name, state)
	}
	o.gauge("notifyd_backlog_oldest_seconds", age(d.Oldest), d.Name)
	o.gauge("notifyd_dead_letters", float64(d.Dead.N), d.Name)
}

// age is 0 where nothing waits.
func age(w *observe.Waiting) float64 {
	if w == nil {
		return 0
	}
	return w.Age
}
