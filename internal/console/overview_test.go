package console

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/status"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

// TestStateOf: the label and the colour of a destination.
func TestStateOf(t *testing.T) {
	t.Parallel()
	for want, d := range map[[2]string]observe.DestinationStats{
		{"up", "good"}:        {Trouble: observe.Trouble{Failures: 1}},
		{"down", "bad"}:       {State: observe.BreakerProbing, Down: true},
		{"stuck", "bad"}:      {Down: true, Stuck: 4},
		{"ramping", "warn"}:   {State: observe.BreakerRamping},
		{"throttled", "warn"}: {State: observe.BreakerThrottled, Report: &delivery.Report{Blocked: true}},
		{"paused", "paused"}:  {State: observe.BreakerOpen, Down: true, Paused: true},
		{"blocked", "warn"}:   {Report: &delivery.Report{Blocked: true}},
	} {
		if text, class := stateOf(d, false); text != want[0] || class != want[1] {
			t.Errorf("%+v is %s (%s), want %v", d, text, class, want)
		}
	}
}

// TestProblems: a problem names the cause, and for how long, and has its cure, and the words of "notifyd status".
func TestProblems(t *testing.T) {
	t.Parallel()
	at := time.Now()
	o := &outbox{Console: &Console{}, base: Path}
	mail := observe.DestinationBacklog{Name: "mail", Retry: observe.Count{N: 3}}
	up := observe.Stats{Destinations: []observe.DestinationStats{{Name: "other"}}}
	down := observe.DestinationStats{
		Name: "mail", Down: true, State: observe.BreakerOpen,
		Trouble: observe.Trouble{DownSince: at.Add(-7*time.Minute - 4*time.Second), NextProbe: at.Add(9 * time.Second)},
	}
	known := func(b observe.Backlog) reading { return reading{at: at, backlog: b} }
	for _, c := range []struct {
		s    snapshot
		want []problem
	}{
		{snapshot{stats: observe.Stats{DatabaseDown: true}}, []problem{{
			Text: "The database does not answer the relay: nothing is delivered.", Cure: "see that the database runs and can be reached; the relay continues when it is back", ofRelays: true,
		}}},
		{snapshot{stats: observe.Stats{DatabaseDown: true, DatabaseCure: "fix the password"}}, []problem{{
			Text: "The database refuses the relay: nothing is delivered.", Cure: "fix the password", ofRelays: true,
		}}},
		{snapshot{at: at, stats: observe.Stats{Destinations: []observe.DestinationStats{down}}}, []problem{{
			Text: "The destination mail has been down for 7m04s, next probe in 9s.",
			Cure: "fix what the error names, there or in destinations.mail of the configuration; its events wait and lose no attempt",
			Link: "/console/destination?name=mail", Label: "Show mail", severity: destinationDown,
		}}},
		{snapshot{stats: up, reading: known(observe.Backlog{Destinations: []observe.DestinationBacklog{mail}})}, []problem{{
			Text: "The configuration has no destination mail, and 3 deliveries wait for it.", Cure: status.Restore("mail"),
			Link: "/console/destination?name=mail", Label: "Show mail", severity: eventsStuck,
		}}},
		{snapshot{stats: up, reading: known(observe.Backlog{
			Destinations: []observe.DestinationBacklog{mail}, Positions: []observe.Position{{Destination: "mail", Session: &observe.ShardSession{}}},
		})}, nil},
		{snapshot{reading: known(observe.Backlog{Unrouted: []observe.TypeBacklog{{EventType: "a b", Count: observe.Count{N: 1}}}})}, []problem{{
			Text: "No route matches 1 event of type a b.", Cure: "add a route for it to the configuration, and reload",
			Link: "/console/events?state=waiting&type=a+b", Label: "Show the events", severity: eventsStuck,
		}}},
	} {
		if got := o.problems(c.s); !slices.Equal(got, c.want) {
			t.Errorf("got  %+v\nwant %+v", got, c.want)
		}
	}
}

// TestProblemsAreSorted by what they cost, and each has its cure.
func TestProblemsAreSorted(t *testing.T) {
	t.Parallel()
	at := time.Now()
	o := &outbox{Console: &Console{}, base: Path, trouble: func() error { return errors.New("no\ntables") }}
	s := snapshot{
		at: at,
		stats: observe.Stats{
			DatabaseDown: true, Hangs: []observe.Hang{{Reason: "nothing moves"}}, Refusals: []observe.Refusal{{Err: errors.New("x"), Code: "42501"}},
			Listener: &observe.ListenerStats{}, Destinations: []observe.DestinationStats{{Name: "a"}, {Name: "b", Down: true}, {Name: "c"}},
		},
		reading: reading{at: at, relays: []store.RelaySession{{Program: &store.Program{Refused: "line 3"}}}, backlog: observe.Backlog{
			At: at, Mode: observe.ModeStream, Missing: observe.Count{N: 1}, Unrouted: []observe.TypeBacklog{{EventType: "t"}},
			Positions: []observe.Position{{Destination: "c"}, {Destination: "gone"}},
			Destinations: []observe.DestinationBacklog{
				{Name: "a", Dead: observe.Count{N: 2}, Pause: &observe.Pause{By: "ann", Since: at}},
				{Name: "b", Retry: observe.Count{N: 1}},
			},
		}},
	}
	var got []string
	last := nothingDelivered
	for _, p := range o.problems(s) {
		if p.Cure == "" || p.severity < last || strings.Contains(p.Text+p.Cure, "\n") {
			t.Errorf("%+v", p)
		}
		last = p.severity
		got = append(got, cmp.Or(p.Resume, p.Label, p.Text))
	}
	want := []string{
		"The database does not answer the relay: nothing is delivered.", "Show the relays", "Show the relays",
		"Show b", "The events of 1 stored delivery are missing from outbox_events.", "Show the dead letters", "Show the events",
		"Show the relays", "a", "Show the position",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if all := o.problems(snapshot{}); len(all) != 1 || all[0].Text != "This outbox is not relayed: no; tables." {
		t.Errorf("without a relay: %+v", all)
	}
}

// TestOverviewOfDeadLetters: the overview shows the errors of dead letters, the largest group first, with the way to them.
func TestOverviewOfDeadLetters(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	s.dead("order.placed", "hook", "404 nothing there")
	for range 2 {
		s.dead("order.placed", "mail", "550 no such <user>")
	}
	s.awaitReading()
	page := s.get(Path)
	const first = `<a href="/console/dead?destination=mail">550 no such &lt;user&gt;</a></th><td class="n" data-label="How many">2</td>`
	if at := strings.Index(page, first); at < 0 || !strings.Contains(page[at:], "404 nothing there") {
		t.Errorf("the overview:\n%s", page)
	}
}
