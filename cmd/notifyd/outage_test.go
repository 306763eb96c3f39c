package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/cmd/internal/doctor"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/status"
)

// badDay is a relay with a destination for each kind of failure, and one that is well.
type badDay struct {
	*testing.T
	url, config string
	healed      atomic.Bool
	ended       chan struct{} // closed when the test ends: requests that hang end, too
}

const badDayConfig = `version: 1
database: {url: "%s"}
log: {level: debug, format: json}
admin: {listen: "%s"}
destinations:
  gone: {type: webhook, url: "http://127.0.0.1:1/"}
  busy: {type: webhook, url: "%[3]s/busy"}
  locked: {type: webhook, url: "%[3]s/locked"}
  slow: {type: webhook, url: "%[3]s/slow", response_timeout: 100ms}
  picky: {type: webhook, url: "%[3]s/picky"}
  audit: {type: log}
routes:
  - {match: order.placed, to: [gone, busy, locked, slow, picky, audit]}
`

func startBadDay(t *testing.T, mode string) *badDay {
	t.Helper()
	b := &badDay{T: t, url: databaseOf(t, mode), ended: make(chan struct{})}
	server := httptest.NewServer(b)
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(b.ended) })
	b.config = startAt(t, strings.ReplaceAll(badDayConfig, "%[3]s", server.URL), b.url)

	return b
}

// ServeHTTP fails in the way that the path names.
func (b *badDay) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if b.healed.Load() {
		return
	}
	switch r.URL.Path {
	case "/busy":
		w.WriteHeader(http.StatusServiceUnavailable)
	case "/locked":
		w.WriteHeader(http.StatusUnauthorized)
	case "/picky":
		w.WriteHeader(http.StatusUnprocessableEntity)
	case "/slow":
		select {
		case <-r.Context().Done():
		case <-b.ended:
		}
	}
}

// seen is what "notifyd status" says of a destination.
type seen struct {
	status.RelayDestination

	needs, row, failing string
}

// untilSeen looks until what status says of each destination is as wanted.
func (b *badDay) untilSeen(what string, wanted map[string]func(seen) bool) {
	b.Helper()
	var table string
	commandUntil(b.T, what, func(r result) bool {
		var s status.Status
		if json.Unmarshal([]byte(r.stdout), &s) != nil || s.Relay == nil {
			return false
		}
		table = invoke(b.T, "status", "-c", b.config).stdout
		all := make(map[string]seen)
		for _, d := range s.Relay.Destinations {
			one := seen{RelayDestination: d}
			for _, a := range s.Attention {
				if a.Destination == d.Name {
					one.needs += a.Text + "\n"
				}
			}
			one.row = regexp.MustCompile(`(?m)^` + d.Name + `  .*$`).FindString(table)
			one.failing = regexp.MustCompile(`(?m)^  ` + d.Name + `: .*$`).FindString(table)
			all[d.Name] = one
		}
		for name, is := range wanted {
			if one, ok := all[name]; !ok || !is(one) {
				return false
			}
		}
		return true
	}, "status", "-c", b.config, "-o", "json")
	b.Logf("%s:\n%s", what, table)
}

func down(text string) func(seen) bool {
	return func(s seen) bool {
		return s.Down && s.DownFor > 0 && s.Refused > 1 && s.FailingEvents > 1 && s.Failed+s.Dead == 0 && s.Delivered == 0 &&
			regexp.MustCompile(` down [\dms]+ .* probe ([\dms]+|now) `).MatchString(s.row) &&
			strings.Contains(s.needs, "has been down for") && strings.Contains(s.needs, text) &&
			strings.Contains(s.failing, "no attempt counted") && strings.Contains(s.failing, text)
	}
}

func well(s seen) bool {
	return !s.Down && s.State == "closed" && s.DownFor == 0 && s.FailingEvents == 0 && s.Delivered > 0 && s.failing == "" && s.needs == "" && strings.Contains(s.row, " up ")
}

// TestWhatIsSaidInAnOutage: status and doctor say what fails, in which way and since when, that it
// costs no attempt where that is so, and that it is over.
func TestWhatIsSaidInAnOutage(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			b := startBadDay(t, mode)
			b.untilSeen("before", map[string]func(seen) bool{"locked": func(s seen) bool { return s.needs == "" && strings.Contains(s.row, " up ") }})
			for range 3 {
				publishTo(t, b.url, "order.placed", order)
			}
			b.untilSeen("in the outage", map[string]func(seen) bool{
				"gone": down("connection refused"), "busy": down("503"), "locked": down("401"), "slow": down("response_timeout"), "audit": well,
				"picky": func(s seen) bool {
					return !s.Down && s.Dead == 3 && s.FailingEvents == 3 && strings.Contains(s.row, " failing ") && strings.Contains(s.needs, "3 dead letters")
				},
			})
			found, r := examineBy(t, b.config)
			if r.code != command.ExitFailure {
				t.Errorf("doctor exits with %d", r.code)
			}
			for name, text := range map[string]string{"busy": "503", "locked": "401", "slow": "response_timeout"} {
				f := found[name]
				for _, part := range []string{"Tested: the TCP connection. Not tested: the path and the credentials", "has been down for", "no attempt was counted", text} {
					if f.Severity != doctor.Error || !strings.Contains(f.Text, part) || !strings.Contains(f.Cure, "destinations."+name) {
						t.Errorf("%s: no %q in %+v", name, part, f)
					}
				}
			}
			if f := found["gone"]; f.Severity != doctor.Error || !strings.Contains(f.Text, "cannot be used from here") || !strings.Contains(f.Text, "has been down for") {
				t.Errorf("gone: %+v", f)
			}
			if f := found["picky"]; f.Severity != doctor.Warning || !strings.Contains(f.Text, "Dead letters: 3") || !strings.Contains(f.Text, "422") {
				t.Errorf("picky: %+v", f)
			}
			if f := found["audit"]; f.Severity != doctor.OK {
				t.Errorf("audit: %+v", f)
			}

			b.healed.Store(true)
			if r := invoke(t, "dlq", "replay", "--database-url", b.url, "--destination", "picky", "--yes"); r.code != command.ExitOK {
				t.Fatalf("%+v", r)
			}
			b.untilSeen("after the outage", map[string]func(seen) bool{"gone": down("connection refused"), "busy": well, "locked": well, "slow": well, "picky": well, "audit": well})
			found, _ = examineBy(t, b.config)
			for _, name := range []string{"busy", "locked", "slow", "picky", "audit"} {
				if f := found[name]; f.Severity != doctor.OK {
					t.Errorf("after the outage: %s: %+v", name, f)
				}
			}
		})
	}
}
