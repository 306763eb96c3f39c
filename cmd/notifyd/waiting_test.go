package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/status"
	"github.com/notifyd/notifyd/ops"
)

// startAt starts a daemon whose configuration has a verb for the database and one for the address of the admin server,
// and returns a file with the address that it listens on.
func startAt(t *testing.T, text, url string) (config string) {
	t.Helper()
	d := startDaemon(t, nil, "run", "-c", file(t, fmt.Sprintf(text, url, "127.0.0.1:0")))
	d.stderr.await(t, `"relay started"`)
	address := regexp.MustCompile(`"msg":"admin server listening","listen":"([^"]+)"`).FindStringSubmatch(d.stderr.text())[1]
	untilReady(t, "http://"+address+"/readyz")
	return file(t, fmt.Sprintf(text, url, address))
}

// TestThrottledUntil: status and events show name the end of the pause that a destination has requested, and the event
// whose answer requested it.
func TestThrottledUntil(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range []string{"queue", "stream"} {
		for _, code := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
			t.Run(fmt.Sprintf("%s/%d", mode, code), func(t *testing.T) {
				t.Parallel()
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Retry-After", "3500")
					w.WriteHeader(code)
				}))
				t.Cleanup(server.Close)
				url := databaseOf(t, mode)
				config := startAt(t, `version: 1
database: {url: "%s"}
log: {format: json}
admin: {listen: "%s"}
destinations:
  partner: {type: webhook, url: "`+server.URL+`"}
routes:
  - {match: order.placed, to: partner}
`, url)
				execute(t, url, `INSERT INTO outbox_events (event_type, payload) VALUES ('order.placed', '1')`)
				isThrottled := func(r result) bool {
					var s status.Status
					if json.Unmarshal([]byte(r.stdout), &s) != nil || s.Relay == nil || len(s.Relay.Destinations) != 1 {
						return false
					}
					d := s.Relay.Destinations[0]
					return d.ThrottledBy == 1 && d.ThrottledFor > 3000 && d.ThrottledFor <= 3500
				}
				commandUntil(t, "the status has the pause", isThrottled, "status", "-c", config, "-o", "json")
				execute(t, url, `INSERT INTO outbox_events (event_type, payload) VALUES ('order.placed', '2')`)

				words := regexp.MustCompile(`throttled until \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ by the answer to event 1\n`)
				says := func(r result) bool { return words.MatchString(r.stdout) }
				commandUntil(t, "status says so", says, "status", "-c", config)
				for _, event := range []string{"1", "2"} {
					commandUntil(t, "events show says so", says, "events", "show", event, "-c", config)
					commandUntil(t, "events show has it in JSON", func(r result) bool {
						var e ops.Event
						if json.Unmarshal([]byte(r.stdout), &e) != nil || len(e.Destinations) != 1 {
							return false
						}
						pause := e.Destinations[0].Throttled
						return pause != nil && pause.ByEvent == 1 && pause.Destination == "partner" && !pause.Until.IsZero()
					}, "events", "show", event, "-c", config, "-o", "json")
				}
				// The events that are refused meanwhile do not ask for another pause.
				if r := invoke(t, "status", "-c", config, "-o", "json"); !isThrottled(r) {
					t.Errorf("%+v", r)
				}
			})
		}
	}
}

// TestRetryAndBury: a person hurries a waiting delivery, and makes it a dead letter, which is reported.
func TestRetryAndBury(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range []string{"queue", "stream"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			parked := make(chan string, 10)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/parking" {
					parked <- r.Header.Get("notifyd-id") + " " + r.Header.Get("notifyd-dead-destination") + " " + r.Header.Get("notifyd-dead-attempts")
					return
				}
				asked.Add(1)
				w.WriteHeader(http.StatusConflict)
			}))
			t.Cleanup(server.Close)
			url := databaseOf(t, mode)
			config := startAt(t, `version: 1
database: {url: "%s"}
log: {format: json}
admin: {listen: "%s"}
destinations:
  partner: {type: webhook, url: "`+server.URL+`/partner", backoff: {initial: 10h, max: 10h}, on_dead: {to: parking}}
  parking: {type: webhook, url: "`+server.URL+`/parking"}
routes:
  - {match: '*', to: partner}
`, url)
			execute(t, url, `INSERT INTO outbox_events (event_type, payload) VALUES ('order.placed', '1'), ('order.paid', '2')`)
			until(t, url, `SELECT count(*) = 2 FROM outbox_deliveries WHERE state = 'retry' AND attempts = 1`)
			run := func(want result, args ...string) {
				t.Helper()
				got := invoke(t, append(args, "-c", config)...)
				if got.code != want.code || got.stdout != want.stdout || !strings.HasPrefix(got.stderr, want.stderr) || (want.stderr == "") != (got.stderr == "") {
					t.Errorf("%q: got %+v, want %+v", args, got, want)
				}
			}
			run(result{64, "", "notifyd: which deliveries? Name events"}, "events", "retry")
			run(result{64, "", "notifyd: --all and a choice of deliveries"}, "dlq", "bury", "--all", "1")
			run(result{64, "", "notifyd: 2 waiting deliveries will be buried: --yes says"}, "dlq", "bury", "--destination", "partner")
			run(result{1, "", "notifyd: no delivery of these events waits for its next try"}, "events", "retry", "77")
			run(result{0, "2 waiting deliveries would be retried; nothing was done\n", ""}, "events", "retry", "--destination", "partner", "--dry-run")
			run(result{0, "no waiting deliveries match\n", ""}, "events", "retry", "--destination", "none")
			run(result{0, "{\n  \"matched\": 1,\n  \"done\": 1\n}\n", ""}, "events", "retry", "--type", "order.placed", "-o", "json")
			until(t, url, `SELECT string_agg(event_id || ' ' || attempts, ', ' ORDER BY event_id) = '1 2, 2 1' FROM outbox_deliveries`)
			run(result{0, "retried 2 of 2 waiting deliveries\n", "due now; to see the outcome: `notifyd events list --state waiting`\n"}, "events", "retry", "--destination", "partner", "--yes")
			until(t, url, `SELECT string_agg(event_id || ' ' || attempts, ', ' ORDER BY event_id) = '1 3, 2 2' FROM outbox_deliveries`)

			run(result{0, "buried 1 of 1 waiting delivery\n", ""}, "dlq", "bury", "1", "--reason", "no such order", "--actor", "ann")
			if got := <-parked; got != "1-partner partner 3" {
				t.Errorf("reported %q", got)
			}
			until(t, url, `SELECT string_agg(event_id || ' ' || destination || ' ' || state, ', ' ORDER BY event_id) = '1 partner dead, 2 partner retry' FROM outbox_deliveries`)
			run(result{1, "", "notifyd: no delivery of these events waits for its next try"}, "dlq", "bury", "1")
			got := query[string](t, url, `SELECT string_agg(concat_ws(' ', action, event_id, details->>'reason'), ', ' ORDER BY id) FROM outbox_audit`)
			if want := "retry 1, retry 1, retry 2, bury 1 no such order"; got != want {
				t.Errorf("audit %q, want %q", got, want)
			}
			if asked.Load() != 5 {
				t.Errorf("%d requests, want 5", asked.Load())
			}
		})
	}
}
