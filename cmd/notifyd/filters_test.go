package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
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

// TestConditionsAreBounded: an event whose condition would read its payload again and again becomes a dead letter with the
// reason, and the other events are delivered.
func TestConditionsAreBounded(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"queue", "stream"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := databaseOf(t, mode)
			rest := `SELECT NOT EXISTS (SELECT FROM outbox_events WHERE state NOT IN ('done', 'deferred'))`
			if mode == "stream" {
				rest = `SELECT count(*) = 1 AND bool_and(open = '{}' AND head >= (SELECT max(id) FROM outbox_events)) FROM outbox_positions WHERE destination = 'log'`
			}
			// In turn: read once per element; a long text for a regular expression; as many levels as PostgreSQL takes; a usual event.
			first := query[int64](t, url, `WITH w AS (INSERT INTO outbox_events (event_type, payload) SELECT 'order.' || n, replace(replace(p,
					'BEFORE', repeat('{"a":', 2000) || '"' || repeat('x', 200000) || 'p"' || repeat('}', 2000)),
					'AFTER', repeat('{"a":', 2000) || '"' || repeat('x', 200000) || 'q"' || repeat('}', 2000))::json
				FROM unnest(ARRAY['{"list": [' || repeat('1,', 1000) || '1], "before": BEFORE, "after": AFTER}', '{"text": "' || repeat('ab', 1000000) || '"}',
					'{"before": BEFORE, "after": AFTER}', '{"before": {"a": 1}, "after": {"a": 2}}']) WITH ORDINALITY AS u (p, n) RETURNING id) SELECT min(id) FROM w`)
			config := file(t, "version: 1\ndatabase: {url: '"+url+"'}\nrelay: {poll_interval: 20ms}\ndestinations: {log: {type: log}}\nroutes:\n"+
				"  - {match: order.1, to: log, when: 'payload.list.exists(i, payload.before == payload.after) || true'}\n"+
				"  - {match: order.2, to: log, when: 'payload.text.matches(\"^(a|b|ab)*c$\")'}\n"+
				"  - {match: order.*, to: log, when: payload.before != payload.after}\n")
			d := startDaemon(t, nil, "run", "-c", config, "--log-format", "json")
			until(t, url, rest)
			if code := d.end(t); code != 0 {
				t.Errorf("exit code %d: %s", code, d.stderr.text())
			}
			if got := strings.Count(d.stdout.text(), "\n"); got != 2 {
				t.Errorf("%d lines, want 2", got)
			}
			for id, want := range map[int64]string{first: "it reads more than 16 times the payload", first + 1: "the text is too long for matches"} {
				if r := invoke(t, "events", "show", "-c", config, fmt.Sprint(id)); !strings.Contains(r.stdout, want) || !strings.Contains(r.stdout, "when of the route") {
					t.Errorf("%d: %q is missing in\n%.2000s%s", id, want, r.stdout, r.stderr)
				}
			}
		})
	}
}

// TestManyValues: an event whose payload would take many times its size of memory becomes a dead letter of a destination
// whose template decodes it, with the place and the template; another destination gets it.
func TestManyValues(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"queue", "stream"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := databaseOf(t, mode)
			id := query[int64](t, url, `INSERT INTO outbox_events (event_type, payload) VALUES ('a', ('{"tenant": "x", "list": [' || repeat('[],', 200000) || '1]}')::json) RETURNING id`)
			dir := t.TempDir()
			config := file(t, "version: 1\ndatabase: {url: '"+url+"'}\nrelay: {poll_interval: 20ms}\ndestinations:\n"+
				"  decoded: {type: file, path: '"+dir+"/{{ .Payload.tenant }}.jsonl'}\n  whole: {type: file, path: '"+dir+"/{{ .Event.Type }}.jsonl'}\n"+
				"routes: [{match: '*', to: [decoded, whole], when: 'size(payload.list) > 5'}]\n")
			d := startDaemon(t, nil, "run", "-c", config)
			until(t, url, `SELECT count(*) = 1 AND bool_and(state = 'dead') FROM outbox_deliveries`)
			if mode == "stream" {
				untilPast(t, url, id, "decoded", "whole")
			}
			if code := d.end(t); code != 0 {
				t.Errorf("exit code %d: %s", code, d.stderr.text())
			}
			if lines := strings.Count(testenv.ReadFile(t, dir+"/a.jsonl"), "\n"); lines != 1 {
				t.Errorf("%d lines", lines)
			}
			if text := invoke(t, "events", "show", "-c", config, fmt.Sprint(id)).stdout; !strings.Contains(text, `template "path", line 1, at {{ .Payload.tenant }}: the payload has more than 100000 values (at byte `) {
				t.Error(text)
			}
		})
	}
}
