package status

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

const metricsText = `# HELP notifyd_deliveries_total Answers.
# TYPE notifyd_deliveries_total counter
notifyd_deliveries_total{destination="mail",outcome="delivered"} 120
notifyd_deliveries_total{destination="mail",outcome="failed"} 3
notifyd_deliveries_total{destination="mail",outcome="dead"} 1
notifyd_deliveries_total{destination="audit",outcome="delivered"} 1e+06
notifyd_destination_down{destination="mail"} 1
notifyd_destination_state{destination="mail",state="closed"} 0
notifyd_destination_state{destination="mail",state="probing"} 1
notifyd_destination_throttled_gap_seconds{destination="mail"} 2.5
notifyd_destination_paused{destination="audit"} 1
notifyd_destination_down{destination="audit"} 0
notifyd_backlog_deliveries{destination="gone",state="retry"} 5
notifyd_attempts_total{destination="mail",class="destination"} 17
notifyd_destination_down_seconds{destination="mail"} 480.5
notifyd_destination_next_probe_seconds{destination="mail"} 12
notifyd_destination_failing_events{destination="mail"} 20
notifyd_destination_failing_seconds{destination="mail"} 490
notifyd_destination_stuck{destination="mail"} 2
notifyd_destination_paused{destination="mail"} 0
notifyd_destination_running{destination="mail"} 4
notifyd_destination_queued{destination="mail"} 7
notifyd_listener_connected 1
notifyd_database_up 1
notifyd_database_refuses{code="42501"} 2
notifyd_database_refuses{code="57014"} 0
notifyd_notifications_suppressed 0
go_goroutines 12
`

func TestParseRelay(t *testing.T) {
	t.Parallel()
	r := parseRelay("host:1", "", strings.NewReader(metricsText))
	if r == nil || r.Address != "host:1" || !r.Listening || !r.DatabaseUp || r.Polling || len(r.Destinations) != 2 {
		t.Fatalf("%+v", r)
	}
	if !slices.Equal(r.Refused, []string{"42501"}) {
		t.Errorf("refused %q", r.Refused)
	}
	if a := (&Status{Relay: r}).attention(); len(a) == 0 || !strings.Contains(a[0].Text, "SQLSTATE 42501") || !strings.Contains(a[0].Cure, "--print-grants") {
		t.Errorf("attention %+v", a)
	}
	if r.Destinations[0].Name != "audit" || r.Destinations[0].Delivered != 1e6 || !r.Destinations[0].Paused {
		t.Errorf("%+v", r.Destinations[0])
	}
	if want := (RelayDestination{
		Name: "mail", Down: true, State: "probing", Gap: 2.5, Running: 4, Queued: 7, Delivered: 120, Failed: 3, Dead: 1,
		Refused: 17, DownFor: 480.5, NextProbe: 12, FailingEvents: 20, Failing: 490, Stuck: 2,
	}); r.Destinations[1] != want {
		t.Errorf("%+v", r.Destinations[1])
	}
	if r := parseRelay("host:1", "", strings.NewReader("<html>no relay</html>")); r != nil {
		t.Errorf("of another server: %+v", r)
	}
}

func FuzzParseRelay(f *testing.F) {
	f.Add(metricsText)
	f.Add(`notifyd_database_up NaN`)
	f.Fuzz(func(t *testing.T, text string) {
		r := parseRelay("x", "", strings.NewReader(text))
		if r == nil {
			return
		}
		for _, d := range r.Destinations {
			if d.Name == "" || !strings.Contains(text, d.Name) {
				t.Errorf("%q is invented", d.Name)
			}
		}
		s := Status{Relay: r}
		s.Attention = s.attention()
		_ = s.Table(View{Width: 80, Clean: strings.TrimSpace})
		if n := strings.Count(s.Screen(View{Width: 80, Clean: strings.TrimSpace}, 24, "q"), "\n"); n > 24 {
			t.Errorf("%d lines", n)
		}
	})
}

func TestRates(t *testing.T) {
	t.Parallel()
	at := time.Unix(0, 0)
	before := Status{At: at, Relay: &Relay{Destinations: []RelayDestination{{Name: "a", Delivered: 10, Refused: 3}, {Name: "b", Delivered: 10}}}}
	now := Status{At: at.Add(2 * time.Second), Relay: &Relay{Destinations: []RelayDestination{{Name: "a", Delivered: 30, Refused: 8, Dead: 1}, {Name: "b", Delivered: 5}, {Name: "c"}}}}
	now.Rates(&before)
	d := now.Relay.Destinations
	if d[0].PerSecond == nil || math.Abs(*d[0].PerSecond-10) > 1e-9 || math.Abs(*d[0].FailedPerSecond-3) > 1e-9 || d[1].PerSecond != nil || d[2].PerSecond != nil {
		t.Errorf("%+v", d)
	}
}

// TestTable: no line is wider than the terminal, whatever text the tables hold.
func TestTable(t *testing.T) {
	t.Parallel()
	s := Status{
		At: time.Unix(0, 0), Relays: []store.RelaySession{{PID: 1, Application: strings.Repeat("ü", 200)}},
		Backlog: observe.Backlog{Destinations: []observe.DestinationBacklog{{
			Name: strings.Repeat("d", 20), Dead: observe.Count{N: 10_000, More: true},
			LastError:   &observe.Failure{Text: strings.Repeat("x", 500)},
			DeadLetters: []observe.DeadGroup{{Error: "a\x1b[2Jb", Count: observe.Count{N: 3}}},
		}}},
		Attention: []Attention{{Severity: Error, Text: strings.Repeat("y", 100), Cure: "do it"}},
	}
	clean := func(text string) string { return strings.ReplaceAll(text, "\x1b", " ") }
	text := s.Table(View{Width: 80, Clean: clean})
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%d characters: %s", n, line)
		}
	}
	if strings.Contains(text, "\x1b") || !strings.Contains(text, "10000+") || !strings.Contains(text, "a [2Jb") {
		t.Errorf("%s", text)
	}
}

func TestAgo(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[float64]string{-5: "0s", 0.2: "0s", 59: "59s", 61: "1m01s", 3700: "1h01m", 100_000: "27h46m", 864_000: "10d"} {
		if got := ago(seconds); got != want {
			t.Errorf("%v: %s, want %s", seconds, got, want)
		}
	}
}

// TestStateOfDestinations: the word in the table for the state of a destination, the text about the next try, and whether
// action is required.
func TestStateOfDestinations(t *testing.T) {
	t.Parallel()
	at := time.Unix(1e9, 0)
	waits := observe.DestinationBacklog{Name: "mail", Retry: observe.Count{N: 3}, NextDue: new(at.Add(-time.Minute))}
	failed, paused := waits, waits
	failed.LastError = &observe.Failure{EventID: 7, Class: "destination", Text: "webhook: 401 Unauthorized", At: at.Add(-12 * time.Second)}
	paused.Pause = &observe.Pause{By: "ann@web-1", Reason: "maintenance", Since: at.Add(-time.Hour)}
	letters := func(n int, died time.Time) observe.DestinationBacklog {
		group := observe.DeadGroup{Error: "HTTP 409", Count: observe.Count{N: n}, At: died}

		return observe.DestinationBacklog{Name: "mail", Dead: group.Count, DeadLetters: []observe.DeadGroup{group}}
	}
	one, idle := waits, observe.DestinationBacklog{Name: "mail"}
	one.Retry.N = 1
	failing := relayWith(RelayDestination{State: "closed", FailingEvents: 12, Failing: 90})

	for name, c := range map[string]struct {
		relay   *Relay
		backlog observe.DestinationBacklog
		known   []string
		state   string
		next    string
		needs   string // the beginning of the required action; "" for none
	}{
		"well":                     {relay: relayWith(RelayDestination{State: "closed"}), backlog: waits, state: "up", next: "due"},
		"down":                     {relayWith(RelayDestination{State: "open", Down: true, DownFor: 482, NextProbe: 11.5}), failed, nil, "down 8m02s", "probe 12s", "The destination mail has been down for 8m02s, next probe in 12s; the last error (event 7): webhook: 401 Unauthorized."},
		"probing":                  {relayWith(RelayDestination{State: "probing", Down: true, DownFor: 5}), waits, nil, "down 5s", "probe now", "The destination mail has been down for 5s, the next event probes it."},
		"ramping":                  {relay: relayWith(RelayDestination{State: "ramping", DownFor: 5}), backlog: waits, state: "ramping", next: "due"},
		"throttled":                {relay: relayWith(RelayDestination{State: "throttled", Gap: 2}), backlog: waits, state: "throttled", next: "due"},
		"blocked":                  {relay: relayWith(RelayDestination{State: "closed", Blocked: true, FailingEvents: 1}), backlog: waits, state: "blocked", next: "due"},
		"fails once":               {relay: relayWith(RelayDestination{State: "closed", FailingEvents: 1, Failing: 3}), backlog: waits, state: "failing 3s", next: "due"},
		"fails all":                {relayWith(RelayDestination{State: "closed", FailingEvents: 40, Failing: 3}), waits, nil, "failing 3s", "due", "Nothing was delivered to mail for 3s: 40 failures in a row."},
		"fails long":               {relayWith(RelayDestination{State: "closed", FailingEvents: 2, Failing: 90}), failed, nil, "failing 1m30s", "due", "Nothing was delivered to mail for 1m30s: 2 failures in a row; the last error (event 7): webhook: 401 Unauthorized."},
		"fails once, nothing left": {relay: failing, backlog: idle, state: "up", next: "-"},
		"fails, one letter":        {failing, letters(1, at), nil, "failing 1m30s", "-", "mail has 1 dead letter."},
		"fails, old letters":       {failing, letters(4, at.Add(-time.Hour)), nil, "failing 1m30s", "-", "mail has 4 dead letters."},
		"fails, two letters":       {failing, letters(2, at), nil, "failing 1m30s", "-", "Nothing was delivered to mail for 1m30s: 12 failures in a row; the error of most dead letters: HTTP 409."},
		"fails, one waits":         {failing, one, nil, "failing 1m30s", "due", "Nothing was delivered to mail for 1m30s: 12 failures in a row."},
		"down, nothing waits":      {relay: relayWith(RelayDestination{State: "open", Down: true, DownFor: 482}), backlog: idle, state: "down 8m02s", next: "-"},
		"stuck, nothing waits":     {relayWith(RelayDestination{State: "closed", Down: true, Stuck: 4}), idle, nil, "stuck", "-", "The destination mail gets nothing"},
		"stuck":                    {relayWith(RelayDestination{State: "closed", Down: true, Stuck: 4}), waits, nil, "stuck", "probe now", "The destination mail gets nothing, because 4 calls of its handler have not returned."},
		"paused":                   {relayWith(RelayDestination{State: "closed", Paused: true}), paused, nil, "paused", "resume", "The destination mail was paused 1h00m ago by ann@web-1: maintenance."},
		"pausing":                  {relayWith(RelayDestination{State: "closed"}), paused, nil, "pausing", "resume", "The destination mail was paused"},
		"resuming":                 {relay: relayWith(RelayDestination{State: "closed", Paused: true}), backlog: waits, state: "resuming", next: "due"},
		"not reloaded":             {relay: &Relay{}, backlog: waits, known: []string{"mail"}, state: "not loaded", next: "due"},
		"no relay":                 {nil, failed, []string{"mail"}, "?", "due", "The destination mail was down 12s ago; the last error (event 7): webhook: 401 Unauthorized."},
		"removed":                  {relayWith(RelayDestination{State: "closed"}), failed, []string{"audit"}, "not configured", "-", "The configuration has no destination mail, and 3 deliveries wait for it."},
	} {
		s := Status{At: at, Relay: c.relay, known: c.known, Backlog: observe.Backlog{At: at, Destinations: []observe.DestinationBacklog{c.backlog}}}
		if got := s.state("mail"); got != c.state {
			t.Errorf("%s: %q, want %q", name, got, c.state)
		}
		if got := s.nextTry(&c.backlog); got != c.next {
			t.Errorf("%s: the next try is %q, want %q", name, got, c.next)
		}
		var texts []string
		for _, a := range s.attention() {
			texts = append(texts, a.Text)
			if a.Cure == "" || a.Destination != "mail" {
				t.Errorf("%s: %+v", name, a)
			}
		}
		if all := strings.Join(texts, "\n"); !strings.HasPrefix(all, c.needs) || (c.needs == "") != (all == "") {
			t.Errorf("%s: action required: %q, want %q", name, all, c.needs)
		}
	}
}

// TestReceiverOfDeadLetters: the problem names the destination that gets the dead letters, if there is one.
func TestReceiverOfDeadLetters(t *testing.T) {
	t.Parallel()
	s := Status{DeadLettersTo: map[string]string{"mail": "parking"}}
	for _, name := range []string{"mail", "audit"} {
		s.Backlog.Destinations = append(s.Backlog.Destinations, observe.DestinationBacklog{Name: name, Dead: observe.Count{N: 2}})
	}
	s.Attention = s.attention()
	text := s.Table(View{Clean: strings.TrimSpace})
	for _, want := range []string{"mail has 2 dead letters; dead letters go to parking.\n", "audit has 2 dead letters.\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func relayWith(d RelayDestination) *Relay {
	d.Name = "mail"
	return &Relay{Destinations: []RelayDestination{d}}
}

// TestUnroutedInShort names ten types of many, all of a few, and all where that is wanted.
func TestUnroutedInShort(t *testing.T) {
	t.Parallel()
	var s Status
	for i := range 10_000 {
		s.Backlog.Unrouted = append(s.Backlog.Unrouted, observe.TypeBacklog{EventType: fmt.Sprintf("t%04d", i), Count: observe.Count{N: 1 + i/9_999}})
	}
	texts := func() (all []string) {
		for _, a := range s.attention() {
			all = append(all, a.Text)
		}
		return all
	}
	if all := texts(); len(all) != 11 || all[0] != "No route matches 2 events of type t9999." || all[10] != "No route matches 9990 events of 9990 more types." {
		t.Errorf("%q", all)
	}
	s.Backlog.UnroutedMore = true
	if all := texts(); all[10] != "No route matches 9990+ events of 9990+ more types." {
		t.Errorf("%q", all)
	}
	s.all = true
	if all := texts(); len(all) != 10_000 {
		t.Errorf("%d of 10000", len(all))
	}
	s.all, s.Backlog.Unrouted = false, s.Backlog.Unrouted[:10]
	if all := texts(); len(all) != 10 {
		t.Errorf("%q", all)
	}
}

// TestColors: a colour is what a line has on a terminal alone, and text from the tables brings none.
func TestColors(t *testing.T) {
	t.Parallel()
	s := Status{Relay: relayWith(RelayDestination{State: "open", Down: true, DownFor: 5}), Attention: []Attention{{Severity: Error, Text: "bad \x1b[2J", Cure: "do it"}}}
	clean := func(text string) string { return strings.ReplaceAll(text, "\x1b", " ") }
	if text := s.Table(View{Clean: clean}); strings.Contains(text, "\x1b") {
		t.Errorf("%q", text)
	}
	text := s.Table(View{Width: 40, Color: true, Clean: clean})
	for line := range strings.Lines(text) {
		bare := regexp.MustCompile("\x1b\\[\\d+m").ReplaceAllString(strings.TrimSuffix(line, "\n"), "")
		if utf8.RuneCountInString(bare) > 40 || strings.Contains(bare, "\x1b") {
			t.Errorf("%q", line)
		}
	}
	if !strings.Contains(text, "\x1b[31mmail") || !strings.Contains(text, "\x1b[31m  bad  [2J\x1b[0m\n    do it\n") {
		t.Errorf("%q", text)
	}
}

// TestScreen: a screen of 24 lines of 80 characters has what is important first, and says how much it leaves out.
func TestScreen(t *testing.T) {
	t.Parallel()
	at := time.Unix(1e9, 0)
	s := Status{At: at, Database: "shop at db:5432"}
	r := &Relay{Address: "db:9470", DatabaseUp: true}
	for i := range 30 {
		name := fmt.Sprintf("destination-%02d", i)
		d := RelayDestination{Name: name, State: "closed"}
		b := observe.DestinationBacklog{Name: name, Fresh: observe.Count{N: 123_456}, Oldest: &observe.Waiting{Age: 3}}
		switch {
		case i%10 == 7:
			d = RelayDestination{Name: name, State: "open", Down: true, DownFor: 482, NextProbe: 5}
			b.LastError = &observe.Failure{EventID: 7, Class: "destination", Text: strings.Repeat("refused ", 30), At: at}
		case i%2 == 0:
			b.Dead = observe.Count{N: 3}
			b.DeadLetters = []observe.DeadGroup{{Error: "no", Count: observe.Count{N: 3}, At: at}}
		}
		r.Destinations = append(r.Destinations, d)
		s.Backlog.Destinations = append(s.Backlog.Destinations, b)
		s.Relays = append(s.Relays, store.RelaySession{PID: int32(i), Application: "notifyd/leases", User: "notifyd"})
	}
	s.Relay = r
	s.Attention = s.attention().sorted()
	for _, height := range []int{2, 10, 24, 50, 500} {
		text := s.Screen(View{Width: 80, Clean: strings.TrimSpace}, height, "q: quit")
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if len(lines) > height || !strings.HasSuffix(lines[len(lines)-1], "q: quit") {
			t.Errorf("height %d: %d lines\n%s", height, len(lines), text)
		}
		for _, line := range lines {
			if utf8.RuneCountInString(line) > 80 {
				t.Errorf("wider than 80: %s", line)
			}
		}
		switch left := strings.Contains(text, "use notifyd status"); {
		case height == 500 && left:
			t.Errorf("height %d leaves something out:\n%s", height, text)
		case height < 50 && !left:
			t.Errorf("height %d leaves nothing out:\n%s", height, text)
		}
		if height != 24 {
			continue
		}
		if lines[0] != "action required:" || !strings.HasPrefix(lines[1], "The destination destination-07 has been down for 8m02s") {
			t.Errorf("begins with\n%s", text)
		}
		for _, want := range []string{
			"\ndestination-07  down 8m02s  ", "\ndestination-17  down 8m02s  ", "\ndestination-27  down 8m02s  ",
			" more problems; use notifyd status\n", " more destinations; use notifyd status\n", " more lines; use notifyd status  2001-09-09 01:46:40Z  q: quit\n",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("lacks %q:\n%s", want, text)
			}
		}
	}
}
