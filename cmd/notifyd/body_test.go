package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBodyOfBrokers: every broker takes a template for the body, which is checked with the configuration and shown by
// `notifyd template test`.
func TestBodyOfBrokers(t *testing.T) {
	t.Parallel()
	event := filepath.Join(t.TempDir(), "event.json")
	if err := os.WriteFile(event, []byte(`{"id": 7, "event_type": "order.placed", "payload": {"name": "Ann"}, "headers": {"a": "b"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	all := smallest(t)
	all["kafka"] = "brokers: localhost, topic: 't{{ .Event.ID }}'"
	brokers := map[string]string{"redis channel": "type: redis, addresses: localhost, channel: '{{ .Payload.name }}'"}
	for _, kind := range typesWith("body", "content_type", "format") {
		brokers[kind] = "type: " + kind + ", " + all[kind]
	}
	delete(brokers, "eventbridge") // whose body is always JSON
	delete(brokers, "webhook")

	for kind, settings := range brokers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			with := func(more string) string {
				return file(t, "version: 1\ndatabase: {url: 'postgres://nowhere.invalid/x'}\ndestinations:\n  d: {"+settings+", "+more+"}\nroutes: [{match: '*', to: d}]\n")
			}
			r := invoke(t, "template", "test", "--destination", "d", "--event", event, "-c", with(`body: '{"who": {{ json .Payload.name }}}'`))
			if r.code != 0 || !strings.Contains(r.stdout, `{"who": "Ann"}`) || strings.Contains(r.stdout, `"name"`) {
				t.Errorf("%d: %s%s", r.code, r.stdout, r.stderr)
			}
			r = invoke(t, "template", "test", "--destination", "d", "--event", event, "-c", with(`body: '{{ .Payload.nobody }}', content_type: text/plain`))
			if r.code != 1 || !strings.Contains(r.stderr, `template "body"`) {
				t.Errorf("%d: %s%s", r.code, r.stdout, r.stderr)
			}
			for more, want := range map[string]string{
				`body: '{"who": {{ json .Payload.name }},}'`:           "destinations.d.body: yields no JSON",
				`body: 'x', content_type: text/plain, format: payload`: "destinations.d.format: body is set too",
				`content_type: text/plain`:                             "destinations.d.content_type: works with body only",
			} {
				if r := invoke(t, "check-config", "-c", with(more)); r.code != 78 || !strings.Contains(r.stderr, want) {
					t.Errorf("%s: %d: %s, want %s", more, r.code, r.stderr, want)
				}
			}
		})
	}
}

// TestTemplateTestOfConditions: it says whether an event would be sent by the condition of its route.
func TestTemplateTestOfConditions(t *testing.T) {
	t.Parallel()
	config := file(t, `version: 1
database: {url: 'postgres://nowhere.invalid/x'}
destinations: {d: {type: log}, other: {type: log}, mail: {type: webhook, url: 'http://crm.invalid', body: '{{ .Payload.missing }}', content_type: text/plain}}
routes:
  - {match: order.*, to: [d, mail], when: payload.total > 100}
  - {match: order.*, to: other}
`)
	for payload, want := range map[string]string{
		`{"total": 101}`: "the event meets the condition of its route: payload.total > 100",
		`{"total": 99}`:  "the event would not be sent: it does not meet the condition of its route: payload.total > 100",
		`{}`:             `the event would be a dead letter of d: when of the route "order.*"`,
	} {
		event := filepath.Join(t.TempDir(), "event.json")
		if err := os.WriteFile(event, []byte(`{"event_type": "order.placed", "payload": `+payload+`}`), 0o600); err != nil {
			t.Fatal(err)
		}
		r := invoke(t, "template", "test", "-c", config, "--destination", "d", "--event", event)
		if !strings.Contains(r.stderr, want) || (r.code == 1) != strings.Contains(want, "dead letter") {
			t.Errorf("%s: %d: %s", payload, r.code, r.stderr)
		}
		// A relay asks the condition before the template.
		if r := invoke(t, "template", "test", "-c", config, "--destination", "mail", "--event", event); r.code != 1 || !strings.HasPrefix(strings.TrimPrefix(r.stderr, "notifyd: "), strings.ReplaceAll(want, " of d:", " of mail:")) {
			t.Errorf("%s: %d: %s", payload, r.code, r.stderr)
		}
		if r := invoke(t, "template", "test", "-c", config, "--destination", "other", "--event", event); r.code != 0 || strings.Contains(r.stderr, "condition") {
			t.Errorf("%s: %d: %s", payload, r.code, r.stderr)
		}
	}
}
