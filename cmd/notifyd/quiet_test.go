package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/status"
)

const quietConfig = `version: 1
database: {url: "%s"}
log: {format: json}
admin: {listen: "%s"}
destinations:
  partner: {type: webhook, url: "SERVER", max_attempts: 12, backoff: {initial: 1ms, max: 1ms}}
  gone: {type: webhook, url: "http://127.0.0.1:1/"}
routes:
  - {match: order.placed, to: partner}
  - {match: order.gone, to: gone}
`

// TestAlarmsOfAQuietNight: a problem of a destination is not shown when nothing is left that a person could act on, although
// no event comes that would prove the destination.
func TestAlarmsOfAQuietNight(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusConflict) }))
			t.Cleanup(server.Close)
			url := databaseOf(t, mode)
			config := startAt(t, strings.ReplaceAll(quietConfig, "SERVER", server.URL), url)
			untilShown := func(what string, failures float64, want ...string) {
				t.Helper()
				commandUntil(t, what, func(r result) bool { return showsProblems(r, failures, want) }, "status", "-c", config, "-o", "json")
			}

			publishTo(t, url, "order.placed", order)
			untilShown("one event failed at all attempts", 12, "warning partner has 1 dead letter.")
			if f, r := examineBy(t, config); strings.Contains(f["partner"].Text, "in a row") {
				t.Errorf("doctor: %+v, %+v", f["partner"], r)
			}

			publishTo(t, url, "order.placed", order)
			untilShown("two events failed", 24, "error Nothing was delivered to partner for", "warning partner has 2 dead letters.")

			if r := invoke(t, "dlq", "discard", "--database-url", url, "--all", "--yes"); r.code != 0 {
				t.Fatalf("%+v", r)
			}
			untilShown("the letters are discarded", 24)
			if r := invoke(t, "status", "-c", config, "--exit-code"); r.code != 0 || strings.Contains(r.stdout, "failing") {
				t.Errorf("%+v", r)
			}

			id := publishTo(t, url, "order.gone", order)
			untilShown("the destination is down", 24, "error The destination gone has been down for")
			// A probe that is under way refuses it.
			commandUntil(t, "the event is buried", func(r result) bool { return r.code == 0 }, "dlq", "bury", "--database-url", url, "--yes", id, "--destination", "gone")
			untilShown("its event is buried", 24, "warning gone has 1 dead letter.")
			if r := invoke(t, "dlq", "discard", "--database-url", url, "--all", "--yes"); r.code != 0 {
				t.Fatalf("%+v", r)
			}
			untilShown("and discarded", 24)
		})
	}
}

// showsProblems reports whether the relay has counted so many failures of partner, and a status shows the problems, by the
// beginning of severity and text, and no others.
func showsProblems(r result, failures float64, want []string) bool {
	var s status.Status
	if json.Unmarshal([]byte(r.stdout), &s) != nil || s.Relay == nil || len(s.Attention) != len(want) {
		return false
	}
	for i, a := range s.Attention {
		if !strings.HasPrefix(a.Severity.String()+" "+a.Text, want[i]) {
			return false
		}
	}
	for _, d := range s.Relay.Destinations {
		if d.Name == "partner" {
			return d.FailingEvents == failures
		}
	}

	return false
}
