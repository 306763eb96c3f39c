package metrics

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type source struct {
	stats observe.Stats
	waits func(ctx context.Context) (observe.Backlog, error)
}

func (s source) Stats() observe.Stats { return s.stats }
func (s source) Listening() bool      { return true }
func (s source) Waiting(ctx context.Context) (observe.Backlog, error) {
	return s.waits(ctx)
}

// gather returns the value of every metric, by name and labels.
func gather(t *testing.T, s source) map[string]float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(NewCollector(t.Context(), s))
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string]float64)
	for _, f := range all {
		for _, m := range f.GetMetric() {
			name := []string{f.GetName()}
			for _, l := range m.GetLabel() {
				name = append(name, l.GetValue())
			}
			if h := m.GetHistogram(); h != nil {
				values[strings.Join(name, " ")+" count"] = float64(h.GetSampleCount())
				values[strings.Join(name, " ")+" sum"] = h.GetSampleSum()
				for _, b := range h.GetBucket() {
					values[fmt.Sprintf("%s %v", strings.Join(name, " "), b.GetUpperBound())] = float64(b.GetCumulativeCount())
				}
				continue
			}
			values[strings.Join(name, " ")] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return values
}

func TestCollector(t *testing.T) {
	t.Parallel()
	s := source{stats: observe.Stats{
		Claims: 1, Claimed: 2, Fenced: 3, WakeState: "polling", DatabaseDown: true, Hangs: make([]observe.Hang, 34),
		Refusals:    []observe.Refusal{{Part: "a", Code: "42501"}, {Part: "b", Code: "42501"}},
		Sweeps:      observe.Asked{Count: 17, Failed: 18},
		Leases:      observe.LeaseStats{Held: 23, Granted: 24, Renewed: 25, Lost: 26, TakenOver: 27},
		Connections: []observe.ConnectionStats{{Role: "claim", Open: 4, Opened: 5}, {Role: "claim", Open: 1, Opened: 2}, {Role: "pool"}},
		Destinations: []observe.DestinationStats{
			{
				Name: "a", Delivered: 4, Failed: 5, Dead: 6, Released: 7, Running: 8, Queued: 9, Down: true, Paused: true, Pace: time.Millisecond,
				State: observe.BreakerRamping, Gap: 2 * time.Second, Throttled: 33, Trouble: observe.Trouble{Failures: 34},
				Parked: 19, Classes: [delivery.ClassRelay + 1]uint64{0: 4, delivery.ClassDestination: 20}, NotBegun: observe.NotBegun{Refused: 28, Withdrawn: 29, Withheld: 30}, Capacity: 31, Aggregates: 32,
				Started: observe.Histogram{Count: 3, Sum: 3 * time.Second, Buckets: [17]uint64{1, 1}},
			},
			{Name: "down", Trouble: observe.Trouble{
				DownSince: time.Now().Add(-time.Minute), NextProbe: time.Now().Add(time.Hour), ThrottledUntil: time.Now().Add(time.Hour), ThrottledBy: 5, FailingSince: time.Now().Add(-30 * time.Second), Failures: 1,
			}},
			{Name: "b", Report: &delivery.Report{Connected: true, Blocked: true, Reason: "low on memory", Unconfirmed: 10}},
		},
	}, waits: func(context.Context) (observe.Backlog, error) {
		return observe.Backlog{
			Oldest: &observe.Waiting{Age: 1.5}, Delayed: observe.Count{N: 11},
			Destinations: []observe.DestinationBacklog{
				{Name: "a", Fresh: observe.Count{N: 12}, Retry: observe.Count{N: 13}, Running: observe.Count{N: 14}, Parked: observe.Count{N: 15}, Dead: observe.Count{N: 10000, More: true}, Oldest: &observe.Waiting{Age: 2.5}},
				{Name: "gone", Retry: observe.Count{N: 16}},
			},
		}, nil
	}}
	got := gather(t, s)
	for name, want := range map[string]float64{
		"notifyd_deliveries_total a delivered": 4, "notifyd_deliveries_total a failed": 5, "notifyd_deliveries_total a dead": 6,
		"notifyd_deliveries_total a released": 7, "notifyd_deliveries_total b dead": 0,
		"notifyd_destination_down a": 1, "notifyd_destination_down b": 0, "notifyd_destination_paused a": 1, "notifyd_destination_paused b": 0,
		"notifyd_destination_state a ramping": 1, "notifyd_destination_state a closed": 0, "notifyd_destination_state b closed": 1, "notifyd_destination_state b throttled": 0,
		"notifyd_destination_throttled_gap_seconds a": 2, "notifyd_destination_throttled_gap_seconds b": 0, "notifyd_throttled_total a": 33,
		"notifyd_destination_running a": 8, "notifyd_destination_failing_events a": 34, "notifyd_destination_failing_events b": 0,
		"notifyd_destination_down_seconds a": 0, "notifyd_destination_next_probe_seconds a": 0, "notifyd_destination_failing_seconds b": 0,
		"notifyd_destination_queued a": 9, "notifyd_destination_pace_seconds a": 0.001,
		"notifyd_destination_connected b": 1, "notifyd_destination_blocked b": 1, "notifyd_destination_unconfirmed b": 10,
		"notifyd_claims_total": 1, "notifyd_claimed_total": 2, "notifyd_fenced_total": 3, "notifyd_notifications_suppressed": 1,
		"notifyd_listener_connected": 1, "notifyd_database_up": 0, "notifyd_database_refuses 42501": 2, "notifyd_hangs": 34, "notifyd_oldest_waiting_seconds": 1.5,
		"notifyd_backlog_deliveries a fresh": 12, "notifyd_backlog_deliveries a retry": 13, "notifyd_backlog_deliveries a running": 14,
		"notifyd_backlog_deliveries a parked": 15, "notifyd_dead_letters a": 10000, "notifyd_backlog_oldest_seconds a": 2.5,
		"notifyd_backlog_deliveries b fresh": 0, "notifyd_backlog_oldest_seconds b": 0, "notifyd_backlog_deliveries gone retry": 16,
		"notifyd_delayed_events": 11, "notifyd_queries_total sweep": 17, "notifyd_query_failures_total sweep": 18, "notifyd_queries_total due": 0,
		"notifyd_deliveries_total a parked": 19, "notifyd_attempts_total none a": 4, "notifyd_attempts_total destination a": 20, "notifyd_attempts_total relay a": 0,
		"notifyd_mode queue": 1, "notifyd_mode stream": 0, "notifyd_leases_held": 23, "notifyd_leases_granted_total": 24, "notifyd_leases_renewed_total": 25,
		"notifyd_leases_lost_total": 26, "notifyd_leases_taken_over_total": 27, "notifyd_not_begun_total a no_capacity": 28,
		"notifyd_not_begun_total a withdrawn": 29, "notifyd_not_begun_total a order": 30, "notifyd_destination_capacity a": 31, "notifyd_destination_aggregates a": 32,
		"notifyd_wake_state polling": 1, "notifyd_wake_state listening": 0, "notifyd_connections claim": 5, "notifyd_connections_opened_total claim": 7, "notifyd_connections pool": 0,
		"notifyd_commit_to_handler_seconds a count": 3, "notifyd_commit_to_handler_seconds a sum": 3, "notifyd_commit_to_handler_seconds a 0.00025": 1,
		"notifyd_commit_to_handler_seconds a 0.0005": 2, "notifyd_commit_to_handler_seconds a 60": 2, "notifyd_commit_to_ack_seconds b count": 0,
	} {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s = %v (%t), want %v", name, value, ok, want)
		}
	}
	for name, least := range map[string]float64{"down_seconds down": 60, "next_probe_seconds down": 3000, "throttled_seconds down": 3000, "throttled_by_event down": 5, "failing_seconds down": 30} {
		if value := got["notifyd_destination_"+name]; value < least || value > least+1000 {
			t.Errorf("%s = %v, want %v and little more", name, value, least)
		}
	}
	if _, ok := got["notifyd_destination_blocked a"]; ok {
		t.Error("a handler that reports nothing appears as not blocked")
	}
}

// TestExemplar: a histogram shows its exemplar in the bucket of the duration, also above the last bound, and is complete
// where the id is none that Prometheus takes.
func TestExemplar(t *testing.T) {
	t.Parallel()
	trace, at := "4bf92f3577b34da6a3ce929d0e0e4736", time.Unix(1000, 0)
	var in, above, refused observe.Histogram
	for h, d := range map[*observe.Histogram]time.Duration{&in: 3 * time.Millisecond, &above: time.Hour, &refused: time.Second} {
		h.Observe(d)
		h.Trace(d, trace, at)
	}
	refused.Exemplar.TraceID = strings.Repeat("x", 1000)
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(NewCollector(t.Context(), source{stats: observe.Stats{Destinations: []observe.DestinationStats{
		{Name: "in", Started: in}, {Name: "above", Started: above}, {Name: "refused", Started: refused},
	}}, waits: func(context.Context) (observe.Backlog, error) { return observe.Backlog{}, nil }}))
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for _, f := range all {
		for _, m := range f.GetMetric() {
			if f.GetName() != "notifyd_commit_to_handler_seconds" {
				continue
			}
			name := m.GetLabel()[0].GetValue()
			got[name] = fmt.Sprint(m.GetHistogram().GetSampleCount())
			for _, b := range m.GetHistogram().GetBucket() {
				if e := b.GetExemplar(); e != nil {
					got[name] += fmt.Sprint(" ", b.GetUpperBound(), " ", e.GetLabel()[0].GetName(), "=", e.GetLabel()[0].GetValue(), " ", e.GetValue())
				}
			}
		}
	}
	want := map[string]string{"in": "1 0.005 trace_id=" + trace + " 0.003", "above": "1 +Inf trace_id=" + trace + " 3600", "refused": "1"}
	if !maps.Equal(got, want) {
		t.Errorf("exemplars %v, want %v", got, want)
	}
}

// TestCollectorOfStream: positions in place of claims and leases.
func TestCollectorOfStream(t *testing.T) {
	t.Parallel()
	got := gather(t, source{stats: observe.Stats{
		Mode: "stream", Fenced: 3,
		Positions: []observe.PositionStats{
			{Head: 9, Last: 9, Saved: 1},
			{Destination: "a", Shard: 1, Head: 10, Last: 15, Open: 2, Gaps: 4, Ranges: 3, OldestGap: 1500 * time.Millisecond, Blocked: 7, Saved: 8},
		},
		Destinations: []observe.DestinationStats{{Name: "a"}},
	}, waits: func(context.Context) (observe.Backlog, error) {
		return observe.Backlog{Positions: []observe.Position{
			{Session: &observe.ShardSession{PID: 1}}, {Destination: "a"}, {Destination: "a", Shard: 1, Lag: 11, Session: &observe.ShardSession{PID: 1}, Replay: &observe.Replay{Remaining: 12}}, {Destination: "of another"},
		}}, nil
	}})
	for name, want := range map[string]float64{
		"notifyd_mode stream": 1, "notifyd_mode queue": 0, "notifyd_fenced_total": 3,
		"notifyd_position_head a 1": 10, "notifyd_position_lag a 1": 11, "notifyd_position_open a 1": 2, "notifyd_position_gaps a 1": 3,
		"notifyd_position_gap_oldest_seconds a 1": 1.5, "notifyd_position_blocked_aggregates a 1": 7, "notifyd_position_saves_total a 1": 8,
		"notifyd_replay_remaining a": 12,
		"notifyd_position_head  0":   9, "notifyd_position_lag  0": 0,
		"notifyd_position_unowned  0": 0, "notifyd_position_unowned a 0": 1, "notifyd_position_unowned a 1": 0,
	} {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s = %v (%t), want %v", name, value, ok, want)
		}
	}
	for _, name := range []string{"notifyd_claims_total", "notifyd_leases_held", "notifyd_queries_total ids", "notifyd_position_unowned of another 0", "notifyd_position_lag a 0"} {
		if _, ok := got[name]; ok {
			t.Errorf("%s is offered", name)
		}
	}
}

// TestDatabaseGone: the figures of the database are absent, and nothing hangs.
func TestDatabaseGone(t *testing.T) {
	t.Parallel()
	got := gather(t, source{waits: func(ctx context.Context) (observe.Backlog, error) {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("the query has no deadline")
		}
		return observe.Backlog{}, errors.New("gone")
	}})
	if _, ok := got["notifyd_oldest_waiting_seconds"]; ok {
		t.Error("an unknown age is shown")
	}
	if _, ok := got["notifyd_delayed_events"]; ok {
		t.Error("an unknown number is shown")
	}
	if got["notifyd_database_up"] != 1 {
		t.Errorf("got %v", got)
	}
}
