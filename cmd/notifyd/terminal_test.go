package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/textview"
)

// TestTerminal: no text of a writer controls the terminal of an operator, or changes the order of what it shows, in any form of output.
// JSON means the same as before.
func TestTerminal(t *testing.T) {
	t.Parallel()
	const evil = "a\u009b31m\u0085\u202egnp\u2066\u061c\u200f\u2028\x7f\x1b[2J"
	url := database(t)
	path := file(t, `version: 1
database: {url: '`+url+`'}
destinations: {audit: {type: log}, mail: {type: email, host: 127.0.0.1, port: 1, tls: none, from: a@example.com, to: b@example.com, subject: '{{ .Payload.v }}', text: '{{ .Payload.v }}'},
  hook: {type: webhook, url: 'https://example.com/', event_headers: [x-v], body: '{{ json .Payload }}'}}
routes: [{match: '*', to: audit}]
`)
	payload, err := json.Marshal(map[string]string{"v": evil, evil: "v"})
	if err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t, nil, "run", "-c", path)
	d.stderr.await(t, `"relay started"`)
	sql := strings.NewReplacer("EVIL", "'"+evil+"'", "PAYLOAD", "'"+string(payload)+"'")
	execute(t, url, sql.Replace(`INSERT INTO outbox_events (event_type, payload, aggregate_type, headers, aggregate_id)
		SELECT e, PAYLOAD, e, json_build_object(e, 'v', 'x-v', e), e FROM (VALUES (EVIL)) AS v (e)`))
	d.stdout.await(t, `"payload":`)
	until(t, url, "SELECT state = 'done' FROM outbox_events")
	execute(t, url, sql.Replace(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, error_class, last_error) SELECT id, 'hook', event_type, 'dead', 1, 'event', EVIL FROM outbox_events`))

	event := filepath.Join(t.TempDir(), "event.json")
	text, err := json.Marshal(map[string]any{"event_type": evil, "payload": json.RawMessage(payload), "headers": map[string]string{"x-v": evil}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(event, text, 0o600); err != nil {
		t.Fatal(err)
	}
	outputs := map[string]string{"the destination log": d.stdout.text(), "the log": d.stderr.text()}
	for _, args := range [][]string{
		{"events", "list"},
		{"events", "list", "-o", "json"},
		{"events", "show", "1", "--payload"},
		{"events", "show", "1", "--payload", "-o", "json"},
		{"dlq", "list"},
		{"dlq", "list", "-o", "json"},
		{"dlq", "list", "--group"},
		{"dlq", "show", "1"},
		{"dlq", "show", "1", "-o", "json"},
		{"status"},
		{"status", "-o", "json"},
		{"template", "test", "--destination", "mail", "--event", event},
		{"template", "test", "--destination", "hook", "--event", event},
		{"template", "test", "--destination", "audit", "--event", event},
	} {
		got := invoke(t, append(args, "-c", path)...)
		outputs[strings.Join(args, " ")] = got.stdout + got.stderr
		if got.code != 0 && args[0] != "status" {
			t.Errorf("%v: %+v", args, got)
		}
		if args[len(args)-1] == "json" && args[0] == "events" && args[1] == "show" {
			var shown struct {
				Type    string            `json:"type"`
				Payload map[string]string `json:"payload"`
			}
			if err := json.Unmarshal([]byte(got.stdout), &shown); err != nil || shown.Payload["v"] != evil {
				t.Errorf("%v: %v: %+v of %s", args, err, shown, got.stdout)
			}
		}
	}
	for name, output := range outputs {
		for _, r := range output {
			if textview.Controls(r) && r != '\n' && r != '\t' {
				t.Errorf("%s has %U: %q", name, r, output)
				break
			}
		}
	}
}

// TestLongNamesInTables: one long name does not widen the column of all rows.
func TestLongNamesInTables(t *testing.T) {
	t.Parallel()
	url := database(t)
	execute(t, url, `INSERT INTO outbox_events (event_type, payload, aggregate_type, aggregate_id) VALUES ('a', '1', 'order', repeat('x', 1000)), ('b', '1', 'order', '7')`)
	got := invoke(t, "events", "list", "--database-url", url)
	for line := range strings.SplitSeq(got.stdout, "\n") {
		if len(line) > 200 {
			t.Errorf("a line has %d characters: %s", len(line), line)
		}
	}
	if !strings.Contains(got.stdout, "order/xxx") || !strings.Contains(got.stdout, "order/7") {
		t.Errorf("%+v", got)
	}
}
