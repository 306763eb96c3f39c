package console

import (
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
)

// TestStateOf: the label and the colour of a destination.
func TestStateOf(t *testing.T) {
	t.Parallel()
	for want, d := range map[[2]string]observe.DestinationStats{
		{"up", "good"}:        {},
		{"down", "bad"}:       {State: observe.BreakerProbing, Unavailable: true},
		{"ramping", "warn"}:   {State: observe.BreakerRamping},
		{"throttled", "warn"}: {State: observe.BreakerThrottled, Report: &delivery.Report{Blocked: true}},
		{"paused", "paused"}:  {State: observe.BreakerOpen, Unavailable: true, Paused: true},
		{"blocked", "warn"}:   {Report: &delivery.Report{Blocked: true}},
	} {
		if text, class := stateOf(d); text != want[0] || class != want[1] {
			t.Errorf("%+v is %s (%s), want %v", d, text, class, want)
		}
	}
}

// TestNotes: a note names the cause, and for how long.
func TestNotes(t *testing.T) {
	t.Parallel()
	at := time.Now()
	mail := observe.DestinationBacklog{Name: "mail", Retry: observe.Count{N: 3}}
	gone := observe.Backlog{Destinations: []observe.DestinationBacklog{mail}}
	taken := observe.Backlog{Destinations: []observe.DestinationBacklog{mail}, Positions: []observe.Position{{Destination: "mail", Session: &observe.ShardSession{}}}}
	down := observe.DestinationStats{Name: "mail", Unavailable: true, Trouble: observe.Trouble{DownSince: at.Add(-7*time.Minute - 4*time.Second), LastError: "refused"}}
	for want, s := range map[string]snapshot{
		"The database does not answer the relay. Nothing is delivered until it does.":                      {stats: observe.Stats{DatabaseDown: true}},
		"The database refuses the relay. Nothing is delivered until it does not. To do: fix the password.": {stats: observe.Stats{DatabaseDown: true, DatabaseCure: "fix the password"}},
		"mail is down, for 7 min 4 s: its events wait and lose no attempt. refused":                        {at: at, stats: observe.Stats{Destinations: []observe.DestinationStats{down}}},
		"This relay has no destination mail. Deliveries that wait for it: 3.":                              {reading: reading{backlog: gone}},
		"": {reading: reading{backlog: taken}},
		"No route matches the event type a. Events that wait: 1.": {reading: reading{backlog: observe.Backlog{Unrouted: []observe.TypeBacklog{{EventType: "a", Count: observe.Count{N: 1}}}}}},
	} {
		var got string
		for _, n := range notesOf(s) {
			got += n.Text
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
