package store_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

// TestReports: of several relays that have a destination, the one for which it is least well describes it.
func TestReports(t *testing.T) {
	t.Parallel()
	relay := func(reports ...store.DestinationReport) store.RelaySession {
		return store.RelaySession{Program: &store.Program{Destinations: reports}}
	}
	closed, open := observe.BreakerClosed.String(), observe.BreakerOpen.String()
	well := store.DestinationReport{Name: "mail", Breaker: closed}
	down := store.DestinationReport{Name: "mail", Breaker: open, Down: true}
	failing := store.DestinationReport{Name: "mail", Breaker: closed, Failures: 3}
	audit := store.DestinationReport{Name: "audit", Breaker: closed}

	for name, c := range map[string]struct {
		relays   []store.RelaySession
		want     []store.DestinationReport
		complete bool
	}{
		"no relay":              {nil, nil, false},
		"one":                   {[]store.RelaySession{relay(well, audit)}, []store.DestinationReport{audit, well}, true},
		"the worst is first":    {[]store.RelaySession{relay(down), relay(failing), relay(well)}, []store.DestinationReport{down}, true},
		"the worst is last":     {[]store.RelaySession{relay(well), relay(failing), relay(down)}, []store.DestinationReport{down}, true},
		"two that have another": {[]store.RelaySession{relay(failing), relay(audit)}, []store.DestinationReport{audit, failing}, true},
		"one without a row":     {[]store.RelaySession{relay(well), {}}, []store.DestinationReport{well}, false},
		"one that has begun":    {[]store.RelaySession{relay(well), {Program: &store.Program{}}}, []store.DestinationReport{well}, false},
	} {
		got, complete := store.Reports(c.relays)
		if !reflect.DeepEqual(got, c.want) || complete != c.complete {
			t.Errorf("%s: %+v, complete %t", name, got, complete)
		}
	}
}

// TestReportOfStats: a report survives its row, and gives back the figures that it has.
func TestReportOfStats(t *testing.T) {
	t.Parallel()
	at := time.Unix(1e9, 123_456_789)
	stats := observe.DestinationStats{
		Name: "mail", Type: "email", DeadLettersTo: "audit", State: observe.BreakerOpen, Down: true, Stuck: 2, RateLimited: true, Paused: true,
		Trouble: observe.Trouble{
			Failures: 7, FailingSince: at.UTC(), DownSince: at.Add(time.Second).UTC(), NextProbe: at.Add(time.Minute).UTC(),
			ThrottledUntil: at.Add(time.Hour).UTC(), ThrottledBy: 42,
		},
	}
	row, err := json.Marshal(store.ReportOf(&stats))
	if err != nil {
		t.Fatal(err)
	}
	var report store.DestinationReport
	if err := json.Unmarshal(row, &report); err != nil {
		t.Fatal(err)
	}
	if got := report.Stats(); !reflect.DeepEqual(got, stats) {
		t.Errorf("%+v\nwant %+v", got, stats)
	}

	stats.Trouble.Failures = store.MostFailures + 1
	more := store.ReportOf(&stats)
	stats.Trouble.Failures++
	if again := store.ReportOf(&stats); again != more {
		t.Errorf("another failure changes the report: %+v", again)
	}
}
