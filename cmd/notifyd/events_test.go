package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestEventsAsks(t *testing.T) {
	t.Parallel()
	url := buried(t, 3)
	for args, want := range map[string]result{
		"list --state fresh":     {64, "", `notifyd: invalid argument: a state of "fresh" is not waiting, dead or done`},
		"list --type a*b":        {64, "", "notifyd: invalid argument: event type: invalid pattern"},
		"list --aggregate order": {64, "", `notifyd: --aggregate "order" is not TYPE/ID`},
		"list --since 0s":        {64, "", `notifyd: invalid argument "0s" for "--since" flag: an age must be longer than 0`},
		"list --limit 0":         {64, "", "notifyd: invalid argument: a limit of 0 is not between 1 and 1000"},
		"list --after x":         {64, "", `notifyd: --after "x" is not the id of an event`},
		"list --scan -1":         {64, "", "notifyd: invalid argument: a search through -1 events"},
		"show x":                 {64, "", `notifyd: EVENT "x" is not the id of an event`},
		"show 77":                {1, "", "notifyd: show event 77: there is no such event\n"},
		"list --schema none":     {1, "", `notifyd: schema "none" has no tables of notifyd`},
		"list --state waiting":   {0, "no events match\n", ""},
		"list --state waiting --type no.* -o json": {0, "{\n  \"events\": [],\n  \"searched\": 3\n}\n", ""},
		"list --type no.* --scan 2":                {0, "no events match\n", "searched 2 events, down to 2: go on with --after 2\n"},
	} {
		got := invoke(t, append(append([]string{"events"}, strings.Fields(args)...), "--database-url", url)...)
		if got.code != want.code || got.stdout != want.stdout || !strings.HasPrefix(got.stderr, want.stderr) || (want.stderr == "") != (got.stderr == "") {
			t.Errorf("events %s: got %+v, want %+v", args, got, want)
		}
	}
}

// TestEventsPrints: a dead event is not done, and payloads are printed on demand only.
func TestEventsPrints(t *testing.T) {
	t.Parallel()
	url := buried(t, 3)
	execute(t, url, `INSERT INTO outbox_events (event_type, payload, aggregate_type, aggregate_id) VALUES ('order.paid', '{"secret": 1}', 'order', E'7\x1b[31m')`)
	got := invoke(t, "events", "list", "--limit", "3", "--database-url", url)
	text := regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ| {2,}`).ReplaceAllString(got.stdout, " ")
	const want = "EVENT TYPE AGGREGATE WRITTEN STATE DESTINATIONS\n4 order.paid order/7\uFFFD[31m   waiting not tried\n3 order.placed   dead mail dead\n2 order.placed   dead mail dead\n"
	if strings.Join(strings.Fields(text), " ") != strings.Join(strings.Fields(want), " ") || got.stderr != "there are more: --after 2\n" || got.code != 0 {
		t.Errorf("list: %+v", got)
	}
	got = invoke(t, "events", "list", "--after", "2", "-o", "json", "--database-url", url)
	var page ops.EventPage
	if err := json.Unmarshal([]byte(got.stdout), &page); err != nil || len(page.Events) != 1 || page.Events[0].State != ops.Dead || page.Next != nil || strings.Contains(got.stdout, "payload") {
		t.Errorf("the last page: %+v, %v", got, err)
	}
	got = invoke(t, "events", "show", "3", "--database-url", url)
	for _, want := range []string{"event 3, order.placed, dead, written ", "\nmail: dead, given up ", "  order 3 is\uFFFD[31m bad\n  very\n", "every other destination that it was routed to has received it, or passed it over (expires_after, when), by "} {
		if !strings.Contains(got.stdout, want) || got.code != 0 {
			t.Errorf("show: %q is missing in %+v", want, got)
		}
	}
	if got := invoke(t, "events", "show", "4", "--database-url", url); strings.Contains(got.stdout, "secret") || !strings.Contains(got.stdout, "destinations not decided: not tried, not tried yet, or its first attempt is under way\n") {
		t.Errorf("show: %+v", got)
	}
	if got := invoke(t, "events", "show", "4", "--payload", "-o", "json", "--database-url", url); !strings.Contains(got.stdout, `"secret": 1`) {
		t.Errorf("show with its payload: %+v", got)
	}
}

// TestReplayWaits: the command reports the outcome of the letters, in both modes: here one is
// delivered to a log, and one dies again at a webhook that answers 400.
func TestReplayWaits(t *testing.T) {
	t.Parallel()
	for _, mode := range []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			url := database(t)
			if got := invoke(t, "migrate", "--mode", string(mode), "--database-url", url); got.code != 0 {
				t.Fatalf("%+v", got)
			}
			execute(t, url, `INSERT INTO outbox_events (event_type, payload, state, processed_at) SELECT CASE i WHEN 1 THEN 'order.placed' ELSE 'mail.due' END, '{"a": 1}', 'done', now() FROM generate_series(1, 2) i;
				INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, error_class, last_error)
				SELECT id, CASE id WHEN 1 THEN 'audit' ELSE 'mail' END, event_type, 'dead', 1, 'event', 'it was bad' FROM outbox_events`)
			got := invoke(t, "dlq", "replay", "1", "--wait", "--timeout", "1ms", "--database-url", url)
			if got.code != 1 || got.stdout != "replayed 1 of 1 dead letter\ndelivered 0, dead again 0, still waiting 1\n" || !strings.Contains(got.stderr, "1 dead letter still waiting after 1ms: see `notifyd status`") {
				t.Errorf("without a relay: %+v", got)
			}
			execute(t, url, `UPDATE outbox_deliveries SET state = 'dead' WHERE event_id = 1`)
			execute(t, url, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (99, 'audit', 'order.placed', 'dead')`)
			got = invoke(t, "dlq", "replay", "99", "--wait", "--database-url", url)
			if got.code != 1 || !strings.HasPrefix(got.stdout, "replayed 0 of 1 dead letter; ") || !strings.Contains(got.stderr, "1 dead letter not replayed: the event is missing") {
				t.Errorf("without its event: %+v", got)
			}
			execute(t, url, `DELETE FROM outbox_deliveries WHERE event_id = 99`)
			path := file(t, fmt.Sprintf(`version: 1
database: {url: '%s'}
destinations:
  audit: {type: log, payload: false}
  mail: {type: email, host: 127.0.0.1, port: 1, from: a@example.com, to: '{{ .Payload.email }}', subject: x, text: y}
routes: [{match: 'order.*', to: audit}, {match: 'mail.*', to: mail}]
`, url))
			startDaemon(t, nil, "run", "-c", path)
			got = invoke(t, "dlq", "replay", "--all", "--yes", "--wait", "--timeout", "2m", "-c", path)
			if got.code != 1 || !strings.HasPrefix(got.stdout, "replayed 2 of 2 dead letters\ndelivered 1, dead again 1, still waiting 0\nCOUNT ") ||
				!strings.Contains(got.stdout, "the event has no such field") || got.stderr != "notifyd: 1 dead letter died again\n" {
				t.Errorf("%+v", got)
			}
			// Nothing is said to be done that is dead.
			if got := invoke(t, "events", "show", "2", "-c", path); !strings.Contains(got.stdout, "event 2, mail.due, dead") || !strings.Contains(got.stdout, ", replayed 1 time\n") {
				t.Errorf("the dead one: %+v", got)
			}
			if got := invoke(t, "events", "show", "1", "-c", path); !strings.Contains(got.stdout, "event 1, order.placed, done") || !strings.Contains(got.stdout, "audit: delivered, 20") {
				t.Errorf("the delivered one: %+v", got)
			}
		})
	}
}
