package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// TestConditions runs the daemon with conditions, on both kinds of tables: what does not match is settled, what fails is dead and is
// delivered by a replay after the file was cured, and `events show` says what became of each.
func TestConditions(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"queue", "stream"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := databaseOf(t, mode)
			rest := `SELECT NOT EXISTS (SELECT FROM outbox_events WHERE state <> 'done')`
			if mode == "stream" {
				rest = `SELECT (SELECT count(*) = 3 AND bool_and(open = '{}' AND head >= (SELECT max(id) FROM outbox_events)) FROM outbox_positions)`
			}
			first := query[int64](t, url, `WITH w AS (INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
				SELECT 'order.placed', 'order', '1', p::json FROM unnest(ARRAY['{"total": 50}', '{"total": 150}', '{}']) AS p RETURNING id) SELECT min(id) FROM w`)
			config := func(when string) string {
				return file(t, "version: 1\ndatabase: {url: '"+url+"'}\nrelay: {poll_interval: 20ms}\ndestinations: {rich: {type: log}, all: {type: log}}\nroutes:\n"+
					"  - {match: order.*, to: rich, when: '"+when+"'}\n  - {match: order.*, to: all}\n")
			}
			run := func(config string, lines int) {
				t.Helper()
				d := startDaemon(t, nil, "run", "-c", config, "--log-format", "json")
				if !d.says(t, `"relay started"`) {
					t.Fatal(d.stderr.text())
				}
				until(t, url, rest+` AND NOT EXISTS (SELECT FROM outbox_deliveries WHERE state <> 'dead')`)
				if code := d.end(t); code != 0 {
					t.Errorf("exit code %d: %s", code, d.stderr.text())
				}
				if got := strings.Count(d.stdout.text(), "\n"); got != lines {
					t.Errorf("%d lines, want %d:\n%s", got, lines, d.stdout.text())
				}
			}
			bad := config("payload.total > 100")
			plan := invoke(t, "plan", "-c", bad)
			for _, want := range []string{"payload.total > 100", "order.placed", fmt.Sprintf("event %d: when of the route", first+2)} {
				if plan.code != 0 || !strings.Contains(plan.stdout, want) {
					t.Errorf("%d: %q is missing in\n%s%s", plan.code, want, plan.stdout, plan.stderr)
				}
			}
			if !regexp.MustCompile(`payload\.total > 100 +1 +1 +1\b`).MatchString(plan.stdout) {
				t.Error(plan.stdout)
			}
			run(bad, 4) // three to all, one to rich
			show := func(id int64, want ...string) {
				t.Helper()
				r := invoke(t, "events", "show", "-c", bad, fmt.Sprint(id))
				for _, w := range want {
					if !strings.Contains(r.stdout, w) {
						t.Errorf("%d: %q is missing in\n%s%s", id, w, r.stdout, r.stderr)
					}
				}
			}
			show(first, "rich: filtered, by when of its route, as it is configured now: payload.total > 100")
			show(first+2, "rich: dead", `when of the route "order.*" (`, "payload.total > 100: column 8, at payload.total: the event has no such member", "fault of event")
			if r := invoke(t, "events", "show", "-c", bad, fmt.Sprint(first+1)); strings.Contains(r.stdout, "filtered") {
				t.Error(r.stdout)
			}
			cured := config("!has(payload.total) || payload.total > 100")
			if r := invoke(t, "dlq", "replay", "-c", cured, "--destination", "rich", "--yes"); r.code != 0 {
				t.Fatal(r.stderr)
			}
			run(cured, 1)
		})
	}
}
