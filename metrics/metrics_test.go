package metrics

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/dispatch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type source struct {
	stats  dispatch.Stats
	oldest func(ctx context.Context) (time.Duration, error)
}

func (s source) Stats() dispatch.Stats { return s.stats }
func (s source) Listening() bool       { return true }
func (s source) OldestWaiting(ctx context.Context) (time.Duration, error) {
	return s.oldest(ctx)
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
			values[strings.Join(name, " ")] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return values
}

func TestCollector(t *testing.T) {
	t.Parallel()
	s := source{stats: dispatch.Stats{
		Claims: 1, Claimed: 2, Fenced: 3, Bell: "awake", DatabaseDown: true,
		Destinations: []dispatch.DestinationStats{
			{Name: "a", Delivered: 4, Failed: 5, Dead: 6, Released: 7, Running: 8, Queued: 9, Unavailable: true, Pace: time.Millisecond},
			{Name: "b", Report: &dispatch.Report{Connected: true, Blocked: true, Reason: "low on memory", Unconfirmed: 10}},
		},
	}, oldest: func(context.Context) (time.Duration, error) { return 1500 * time.Millisecond, nil }}
	got := gather(t, s)
	for name, want := range map[string]float64{
		"notifyd_deliveries_total a delivered": 4, "notifyd_deliveries_total a failed": 5, "notifyd_deliveries_total a dead": 6,
		"notifyd_deliveries_total a released": 7, "notifyd_deliveries_total b dead": 0,
		"notifyd_destination_unavailable a": 1, "notifyd_destination_unavailable b": 0, "notifyd_destination_running a": 8,
		"notifyd_destination_queued a": 9, "notifyd_destination_pace_seconds a": 0.001,
		"notifyd_destination_connected b": 1, "notifyd_destination_blocked b": 1, "notifyd_destination_unconfirmed b": 10,
		"notifyd_claims_total": 1, "notifyd_claimed_total": 2, "notifyd_fenced_total": 3, "notifyd_bell_awake": 1,
		"notifyd_listener_connected": 1, "notifyd_database_up": 0, "notifyd_oldest_waiting_seconds": 1.5,
	} {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s = %v (%t), want %v", name, value, ok, want)
		}
	}
	if _, ok := got["notifyd_destination_blocked a"]; ok {
		t.Error("a handler that tells nothing is said not to be blocked")
	}
}

// TestDatabaseGone: what it would tell is absent, and nothing hangs.
func TestDatabaseGone(t *testing.T) {
	t.Parallel()
	got := gather(t, source{oldest: func(ctx context.Context) (time.Duration, error) {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("the question to the database has no end")
		}
		return 0, errors.New("gone")
	}})
	if _, ok := got["notifyd_oldest_waiting_seconds"]; ok {
		t.Error("an age is shown that nobody knows")
	}
	if got["notifyd_database_up"] != 1 {
		t.Errorf("got %v", got)
	}
}
