package main

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
)

// TestRouteTest: the command names the routes that decide, with their lines, and what an event of a file meets. It needs no
// secret of the file.
func TestRouteTest(t *testing.T) {
	t.Parallel()
	config := file(t, `version: 1
database: {url: "${env:NOT_SET}"}
destinations: {mail: {type: email, host: "${env:NOT_SET}"}, audit: {type: log}, big: {type: log}}
routes:
  - {match: "order.*", to: [mail, audit]}
  - {match: "order.*", to: big, when: payload.total > 100}
  - {match: "user.*", to: audit}
outboxes:
  list:
    - {name: branch, schema: branch, routes: [{match: "user.*", to: mail}]}
`)
	event := func(payload string) string {
		return file(t, `{"event_type": "order.placed", "payload": `+payload+`}`)
	}
	for name, c := range map[string]struct {
		args   []string
		code   int
		want   string
		stderr string
	}{
		"a type":            {[]string{"order.placed"}, 0, "order.placed matches \"order.*\"\n", ""},
		"a condition":       {[]string{"order.placed"}, 0, config + ":6:13  big          payload.total > 100  depends on it: --event FILE\n", ""},
		"an event meets it": {[]string{"--event", event(`{"total": 101}`)}, 0, config + ":6:13  big          payload.total > 100  goes there\n", ""},
		"or not":            {[]string{"--event", event(`{"total": 3}`)}, 0, "payload.total > 100  does not meet the condition\n", ""},
		"or it fails":       {[]string{"--event", event(`{}`)}, command.ExitFailure, "is a dead letter\n", "notifyd: the event would be a dead letter of big: when of the route"},
		"no route":          {[]string{"ship.sailed"}, command.ExitFailure, "", "notifyd: no route matches ship.sailed: such an event waits until one does\n"},
		"as JSON":           {[]string{"--event", event(`{"total": 101}`), "-o", "json"}, 0, "\"destinations\": [\n    \"mail\",\n    \"audit\",\n    \"big\"\n  ]\n", ""},
		"of an outbox":      {[]string{"user.created", "--outbox", "branch"}, 0, config + ":10:55  mail  -     goes there\n", ""},
		"of no outbox":      {[]string{"user.created", "--outbox", "brunch"}, command.ExitUsage, "", "notifyd: there is no outbox \"brunch\" in the file: it lists branch\n"},
		"nothing":           {nil, command.ExitUsage, "", "notifyd: name an event type, or an event with --event\n"},
	} {
		got := invoke(t, append([]string{"route", "test", "-c", config}, c.args...)...)
		if got.code != c.code || !strings.Contains(got.stdout, c.want) || !strings.HasPrefix(got.stderr, c.stderr) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
