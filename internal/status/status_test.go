package status

import (
	"math"
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
notifyd_destination_unavailable{destination="mail"} 1
notifyd_destination_state{destination="mail",state="closed"} 0
notifyd_destination_state{destination="mail",state="probing"} 1
notifyd_destination_throttled_gap_seconds{destination="mail"} 2.5
notifyd_destination_paused{destination="audit"} 1
notifyd_destination_paused{destination="mail"} 0
notifyd_destination_running{destination="mail"} 4
notifyd_destination_queued{destination="mail"} 7
notifyd_listener_connected 1
notifyd_database_up 1
notifyd_database_refuses{code="42501"} 2
notifyd_database_refuses{code="57014"} 0
notifyd_bell_awake 0
go_goroutines 12
`

func TestParseRelay(t *testing.T) {
	t.Parallel()
	r := parseRelay("host:1", strings.NewReader(metricsText))
	if r == nil || r.Address != "host:1" || !r.Listening || !r.DatabaseUp || r.Awake || len(r.Destinations) != 2 {
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
	if want := (RelayDestination{Name: "mail", Unavailable: true, State: "probing", Gap: 2.5, Running: 4, Queued: 7, Delivered: 120, Failed: 3, Dead: 1}); r.Destinations[1] != want {
		t.Errorf("%+v", r.Destinations[1])
	}
	if r := parseRelay("host:1", strings.NewReader("<html>no relay</html>")); r != nil {
		t.Errorf("of another server: %+v", r)
	}
}

func FuzzParseRelay(f *testing.F) {
	f.Add(metricsText)
	f.Add(`notifyd_database_up NaN`)
	f.Fuzz(func(t *testing.T, text string) {
		r := parseRelay("x", strings.NewReader(text))
		if r == nil {
			return
		}
		for _, d := range r.Destinations {
			if d.Name == "" || !strings.Contains(text, d.Name) {
				t.Errorf("%q is invented", d.Name)
			}
		}
		s := Status{Relay: r}
		_ = s.Table(80, strings.TrimSpace)
	})
}

func TestRates(t *testing.T) {
	t.Parallel()
	at := time.Unix(0, 0)
	before := Status{At: at, Relay: &Relay{Destinations: []RelayDestination{{Name: "a", Delivered: 10}, {Name: "b", Delivered: 10}}}}
	now := Status{At: at.Add(2 * time.Second), Relay: &Relay{Destinations: []RelayDestination{{Name: "a", Delivered: 30}, {Name: "b", Delivered: 5}, {Name: "c"}}}}
	now.Rates(&before)
	d := now.Relay.Destinations
	if d[0].PerSecond == nil || math.Abs(*d[0].PerSecond-10) > 1e-9 || d[1].PerSecond != nil || d[2].PerSecond != nil {
		t.Errorf("%+v", d)
	}
}

// TestTable: no line is wider than the terminal, whatever text the tables hold.
func TestTable(t *testing.T) {
	t.Parallel()
	s := Status{
		At: time.Unix(0, 0), Relays: []store.RelaySession{{PID: 1, Application: strings.Repeat("ü", 200)}},
		Backlog: observe.Backlog{Destinations: []observe.DestinationBacklog{{
			Name: strings.Repeat("d", 63), Dead: observe.Count{N: 10_000, More: true},
			LastError:   &observe.Failure{Text: strings.Repeat("x", 500)},
			DeadLetters: []observe.DeadGroup{{Error: "a\x1b[2Jb", Count: observe.Count{N: 3}}},
		}}},
		Attention: []Attention{{Text: strings.Repeat("y", 100), Cure: "do it"}},
	}
	clean := func(text string) string { return strings.ReplaceAll(text, "\x1b", " ") }
	text := s.Table(80, clean)
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

// TestStateOfDestinations: the label in the table for each state of a breaker.
func TestStateOfDestinations(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]RelayDestination{
		"up": {State: "closed"}, "down": {State: "open", Unavailable: true}, "ramping": {State: "ramping"},
		"throttled": {State: "throttled", Gap: 2}, "paused": {State: "throttled", Paused: true},
	} {
		d.Name = "mail"
		s := Status{Relay: &Relay{Destinations: []RelayDestination{d}}}
		if got, _ := s.live("mail"); got != want {
			t.Errorf("%+v is %q, want %q", d, got, want)
		}
	}
	old := Status{Relay: &Relay{Destinations: []RelayDestination{{Name: "mail", Unavailable: true}}}}
	if got, _ := old.live("mail"); got != "down" {
		t.Errorf("a relay that reports no state: %q", got)
	}
}
