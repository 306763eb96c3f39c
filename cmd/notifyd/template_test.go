package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
)

func TestTemplateTest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	// A database and a mail server that are not there: neither is needed.
	config := file(t, shopConfig("postgres://nowhere.invalid/x", 1))
	good := write("good.json", `{"id": 7, "event_type": "order.placed", "payload": {"order": 42, "email": "ann@example.com"}}`)
	for name, c := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"mail": {
			[]string{"--destination", "mail", "--event", good},
			0,
			[]string{"Subject: Order 42, attempt 1\n", "To: <ann@example.com>\n", "X-Notifyd-Event-Id: 7\n", "Thank you for order 42."},
		},
		"log":            {[]string{"--destination", "audit", "--event", good}, 0, []string{`{"event_id":7,"event_type":"order.placed"`, `"destination":"audit"`}},
		"its output":     {[]string{"--destination", "mail", "--event", write("line.json", `{"event_id":9,"event_type":"order.placed","created_at":"2026-11-21T09:59:56.484617Z","attempt":3,"destination":"audit","payload":{"order":7,"email":"a@b.c"}}`)}, 0, []string{"Subject: Order 7, attempt 3\n"}},
		"template fails": {[]string{"--destination", "mail", "--event", write("bare.json", `{"event_type": "order.placed", "payload": {}}`)}, 1, []string{"email:"}},
		"bytes": {
			[]string{"--destination", "audit", "--event", write("bytes.json", `{"event_type": "order.placed", "payload_bytes": "AP8=", "content_type": "avro/binary"}`)},
			0,
			[]string{`"content_type":"avro/binary","payload_size":2`},
		},
		"bytes in a mail":     {[]string{"--destination", "mail", "--event", filepath.Join(dir, "bytes.json")}, 1, []string{"the payload is not JSON, but avro/binary: put what the template needs"}},
		"two payloads":        {[]string{"--destination", "audit", "--event", write("both.json", `{"event_type": "a", "payload": 1, "payload_bytes": ""}`)}, 1, []string{`"payload" and "payload_bytes"`}},
		"no JSON beside":      {[]string{"--destination", "audit", "--event", write("beside.json", `{"event_type": "a", "payload": 1, "content_type": "text/plain"}`)}, 1, []string{`the content type "text/plain", which is not that of JSON`, "payload_bytes"}},
		"no destination":      {[]string{"--event", good}, command.ExitUsage, []string{"--destination is missing"}},
		"no event":            {[]string{"--destination", "mail"}, command.ExitUsage, []string{"--event is missing"}},
		"unknown destination": {[]string{"--destination", "mails", "--event", good}, command.ExitUsage, []string{`no destination "mails": the configuration has mail, audit`}},
		"unknown key":         {[]string{"--destination", "mail", "--event", write("typo.json", `{"type": "a", "payload": 1}`)}, 1, []string{`typo.json is not an event: json: unknown field "type"`}},
		"no type":             {[]string{"--destination", "mail", "--event", write("notype.json", `{"payload": 1}`)}, 1, []string{`has no "event_type"`}},
		"no payload":          {[]string{"--destination", "mail", "--event", write("nopayload.json", `{"event_type": "a"}`)}, 1, []string{`has no "payload"`}},
		"two":                 {[]string{"--destination", "mail", "--event", write("two.json", `{"event_type": "a", "payload": 1} {}`)}, 1, []string{"more than one event"}},
		"no file":             {[]string{"--destination", "mail", "--event", filepath.Join(dir, "none")}, 1, []string{"no such file"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := invoke(t, append([]string{"template", "test", "-c", config}, c.args...)...)
			if r.code != c.code {
				t.Errorf("exit code %d, want %d: %s", r.code, c.code, r.stderr)
			}
			for _, want := range c.want {
				if !strings.Contains(r.stdout+r.stderr, want) {
					t.Errorf("%q is missing in\n%s%s", want, r.stdout, r.stderr)
				}
			}
		})
	}
}
