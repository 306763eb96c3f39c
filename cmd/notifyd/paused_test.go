package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/internal/status"
)

// pausable is a daemon with a console that needs no login.
type pausable struct {
	visitor
	*reloadable
}

const pausableConfig = `version: 1
database: {url: '%s'}
admin: {listen: '%s', console: true}
destinations:
  audit: {type: log, payload: false}
  other: {type: log, payload: false}
routes: [{match: '*', to: [audit, other]}]
`

func startPausable(t *testing.T, database string) *pausable {
	t.Helper()
	p := &pausable{reloadable: startReloadable(t, nil, fmt.Sprintf(pausableConfig, database, "127.0.0.1:0"))}
	p.visitor = visit(t, p.reloadable)
	p.awaits("/console/destinations", "/console/destinations/pause")
	return p
}

// press presses the button of the first destination, audit.
func (p *pausable) press(button string) {
	p.Helper()
	if code, page := p.post("/console/destinations/"+button, url.Values{"destination": {"audit"}}); code != http.StatusOK {
		p.Fatalf("%s: %d\n%s", button, code, page)
	}
}

// TestPausedIsSeen: the metrics and the status show that a
// destination is paused, after a reload too, until it is resumed.
func TestPausedIsSeen(t *testing.T) {
	t.Parallel()
	database := database(t)
	p := startPausable(t, database)
	path := file(t, fmt.Sprintf(pausableConfig, database, strings.TrimPrefix(p.base, "http://")))
	watched := startDaemon(t, nil, "status", "-c", path, "--watch")
	watched.stdout.await(t, "\naudit ")
	statusIs := func(when, audit string, code int) {
		t.Helper()
		commandUntil(t, when, func(r result) bool {
			return r.code == code && regexp.MustCompile(`(?m)^audit +`+audit+` `).MatchString(r.stdout) && regexp.MustCompile(`(?m)^other +up `).MatchString(r.stdout)
		}, "status", "-c", path, "--exit-code")
	}
	p.awaits("/metrics", `notifyd_destination_paused{destination="audit"} 0`)
	statusIs("before", "up", command.ExitOK)

	p.press("pause")
	p.awaits("/metrics", `notifyd_destination_paused{destination="audit"} 1`)
	p.awaits("/metrics", `notifyd_destination_paused{destination="other"} 0`)
	statusIs("paused", "paused", command.ExitFailure)
	watched.await(t, regexp.MustCompile(`(?m)^audit +paused .* 0 +0$`))
	var s status.Status
	r := commandUntil(t, "as JSON", hasRelay, "status", "-c", path, "-o", "json")
	if err := json.Unmarshal([]byte(r.stdout), &s); err != nil {
		t.Fatal(err)
	}
	if s.Relay == nil || len(s.Relay.Destinations) != 2 || !s.Relay.Destinations[0].Paused || s.Relay.Destinations[1].Paused || s.Backlog.Destination("audit").Pause == nil ||
		len(s.Attention) != 1 || s.Attention[0].Destination != "audit" || !strings.Contains(s.Attention[0].Text, "was paused") || !strings.Contains(s.Attention[0].Text, "by the console at 127.0.0.1.") {
		t.Errorf("%+v of %+v", s.Attention, s.Relay)
	}

	p.reloads <- struct{}{}
	p.stderr.await(t, saidDelivers)
	p.awaits("/metrics", `notifyd_destination_paused{destination="audit"} 1`)
	statusIs("reloaded", "paused", command.ExitFailure)

	seen := len(watched.stdout.text())
	p.press("resume")
	p.awaits("/metrics", `notifyd_destination_paused{destination="audit"} 0`)
	statusIs("resumed", "up", command.ExitOK)
	watched.awaitAfter(t, seen, regexp.MustCompile(`(?m)^audit +up .* 0 +0$`))
	if code := watched.end(t); code != command.ExitOK {
		t.Errorf("exit code %d", code)
	}
}

// await waits until a pattern was printed.
func (d *runningDaemon) await(t *testing.T, want *regexp.Regexp) {
	t.Helper()
	d.awaitAfter(t, 0, want)
}

// awaitAfter waits until a pattern was printed behind what there was.
func (d *runningDaemon) awaitAfter(t *testing.T, from int, want *regexp.Regexp) {
	t.Helper()
	for deadline := time.After(patience); ; {
		text, more := d.stdout.read()
		if want.MatchString(text[from:]) {
			return
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("no %v in\n%s", want, text[from:])
		}
	}
}
