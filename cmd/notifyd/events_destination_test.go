package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
)

// TestEventsOfDestination answers "what waits for partner?" and "did partner get order 4?" in both modes. A queue does not
// store the destinations of some events: there the routes of the file count.
func TestEventsOfDestination(t *testing.T) {
	t.Parallel()
	queue := database(t)
	execute(t, queue, `INSERT INTO outbox_events (event_type, payload, state, processed_at) VALUES
			('order.placed', '{"order": 1}', 'fresh', NULL), ('user.created', '{"user": 2}', 'fresh', NULL),
			('order.placed', '{"order": 3}', 'deferred', NULL), ('order.placed', '{"order": 4}', 'done', now()), ('order.placed', '{"order": 5}', 'done', now());
		INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts) VALUES (3, 'mail', 'order.placed', 'retry', 1), (5, 'partner', 'order.placed', 'dead', 3)`)
	stream := streamed(t) // ten events: mail has them, crm is at 4, and 3 is its dead letter
	config := func(url string) string {
		return file(t, "version: 1\ndatabase: {url: '"+url+"'}\ndestinations: {mail: {type: log}, partner: {type: log}, crm: {type: log}}\n"+
			"routes: [{match: 'order.*', to: [mail, partner]}, {match: '*', to: crm}]\n")
	}
	ids := regexp.MustCompile(`(?m)^(\d+) `)
	for _, c := range []struct{ url, args, want string }{
		{queue, "--destination partner", "5 4 3 1"},
		{queue, "--destination partner --state waiting", "1"},
		{queue, "--destination partner --state dead", "5"},
		{queue, "--destination partner --state done", "4 3"},
		{queue, "--destination mail --state waiting", "3 1"},
		{queue, "--destination crm --state waiting", "2"},
		{queue, "--destination nobody", ""},
		{queue, "--where payload.order==4", "4"},
		{queue, "--where payload.order>=3 --state dead", "5"},
		{queue, "--since 1h --where has(payload.user)", "2"},
		{stream, "--destination crm --state waiting", "10 9 8 7 6 5"},
		{stream, "--destination crm --state dead", "3"},
		{stream, "--destination mail --state waiting", ""},
		{stream, "--destination mail --state done --limit 2", "10 9"},
	} {
		got := invoke(t, append([]string{"events", "list", "-c", config(c.url)}, strings.Fields(c.args)...)...)
		var found []string
		for _, m := range ids.FindAllStringSubmatch(got.stdout, -1) {
			found = append(found, m[1])
		}
		if got.code != 0 || strings.Join(found, " ") != c.want {
			t.Errorf("%s: %v, want %s: %+v", c.args, found, c.want, got)
		}
	}

	if got := invoke(t, "events", "list", "--database-url", queue, "--where", "payload.order >"); got.code != command.ExitUsage || !strings.Contains(got.stderr, "--where: column 16: it is not an expression: it ends where something has to follow") {
		t.Errorf("%+v", got)
	}
	for id, want := range map[string]string{
		"1": "by the present routes: mail, partner; those of the time when it was routed are not stored\n",
		"4": "every destination that it was routed to has received it, or passed it over (expires_after, when), by ",
		"5": "by the present routes: mail; those of the time when it was routed are not stored\n",
	} {
		if got := invoke(t, "events", "show", id, "-c", config(queue)); got.code != 0 || !strings.Contains(got.stdout, want) {
			t.Errorf("event %s: %q is missing in %+v", id, want, got)
		}
	}
}

// TestEventsOfNoDestination: a misspelt name is named when nothing matches.
func TestEventsOfNoDestination(t *testing.T) {
	t.Parallel()
	path := file(t, fmt.Sprintf(pauseConfig, database(t), "127.0.0.1:0"))
	for name, want := range map[string]string{
		"audit": "no events match\n",
		"adit":  "no events match; " + path + " has no destination \"adit\": it has audit, other\n",
	} {
		if r := invoke(t, "events", "list", "-c", path, "--destination", name); r.stdout != want || r.code != 0 {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
