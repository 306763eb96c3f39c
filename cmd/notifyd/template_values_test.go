package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// templateValue is what a setting makes of the value of an event, as `notifyd template test` shows the message.
type templateValue struct {
	settings string // of a destination
	setting  string // the template among them, as the pages name it
	value    string
	want     string // in the message; behind "!" in the error of a dead letter
}

// templateValues has a row for each setting that is a template.
func templateValues() []templateValue {
	const (
		mail            = "type: email, host: 127.0.0.1, tls: none, from: a@example.com, to: b@example.com, subject: s, text: t"
		kafka           = "type: kafka, brokers: '127.0.0.1:1', topic: t"
		rabbit          = "type: rabbitmq, host: 127.0.0.1, exchange: e, routing_key: q"
		slack           = "type: slack, token: xoxb-x, channel: C1, text: t"
		bus             = "type: eventbridge, region: eu-central-1, body: '{}'"
		sqs             = "type: sqs, queue_url: 'https://sqs.eu-central-1.amazonaws.com/1/q'"
		sns             = "type: sns, topic_arn: 'arn:aws:sns:eu-central-1:123456789012:orders'"
		redis           = "type: redis, url: 'redis://127.0.0.1:1'"
		nats            = "type: nats, servers: 'nats://127.0.0.1:1'"
		hook            = "type: webhook, url: 'https://example.com/'"
		kinesis, pubsub = "type: kinesis, stream: orders, region: eu-central-1", "type: pubsub, topic: projects/shop/topics/orders, endpoint: 'http://127.0.0.1:1'"
	)
	return []templateValue{
		{"type: file, path: 'a/{{ .Payload.v }}/{{ .Payload.v }}.jsonl'", "path", "x/../y", ""},
		{"type: file, path: 'a/{{ .Payload.v }}/b'", "path", "..", "!a part of the path is empty or dots"},
		{strings.Replace(mail, "from: a@example.com", "from: '{{ .Payload.v }}'", 1), "from", "a@example.com, b@example.com", "!not one e-mail address"},
		{strings.Replace(mail, "to: b@example.com", "to: '{{ .Payload.v }}'", 1), "to", "a@example.com, b@example.com", "!not one e-mail address"},
		{mail + ", cc: ['{{ .Payload.v }} <c@example.com>']", "cc", "x <evil@example.org>, y", "!not one e-mail address"},
		{mail + ", bcc: '{{ .Payload.v }}'", "bcc", "a@example.com\r\nX: 1", "!line end"},
		{mail + ", reply_to: '{{ .Payload.v }}'", "reply_to", "a@example.com; b@example.com", "!not one e-mail address"},
		{strings.Replace(mail, "subject: s", "subject: 'about {{ .Payload.v }}'", 1), "subject", "a\r\nBcc: b@example.com", "Subject: about a Bcc: b@example.com\n"},
		{strings.Replace(mail, "text: t", "text: '{{ .Payload.v }}'", 1), "text", "<b>", "<b>"},
		{mail + ", html: '<p title=\"{{ .Payload.v }}\">'", "html", `"><script>`, "&#34;&gt;&lt;script&gt;"},
		{mail + ", headers: {X-Mine: '{{ .Payload.v }}'}", "headers", "a\nX-Evil: 1", "!a header has one line"},
		{"type: kafka, brokers: '127.0.0.1:1', topic: 'orders.{{ .Payload.v }}'", "topic", "a.b", "!the value holds '.'"},
		{"type: kafka, brokers: '127.0.0.1:1', topic: '{{ .Payload.v }}'", "topic", "__consumer_offsets", "!Kafka's own"},
		{kafka + ", key: '{{ .Payload.v }}'", "key", "a.b/*", "key: a.b/*\n"},
		{kafka + ", partition: '{{ .Payload.v }}'", "partition", "1 2", "!must be a number"},
		{kafka + ", body: '{\"a\": \"{{ .Payload.v }}\"}'", "body", `x","b":"`, `{"a": "x\",\"b\":\""}`},
		{kafka + ", schema_registry: {url: 'http://127.0.0.1:1', subject: '{{ .Payload.v }}'}", "schema_registry.subject", ":.other:x", "!another context"},
		{kafka + ", schema_registry: {url: 'http://127.0.0.1:1', version: '{{ .Payload.v }}'}", "schema_registry.version", "0/../1", "!must be a number from 1 on, or latest"},
		{"type: rabbitmq, host: 127.0.0.1, exchange: '{{ .Payload.v }}', routing_key: q", "exchange", "", "!the broker's own"},
		{"type: rabbitmq, host: 127.0.0.1, exchange: '{{ .Payload.v }}', routing_key: q", "exchange", "amq.topic", "!the value holds '.'"},
		{"type: rabbitmq, host: 127.0.0.1, exchange: e, routing_key: 'orders.{{ .Payload.v }}'", "routing_key", "a.b", "!the value holds '.'"},
		{"type: rabbitmq, host: 127.0.0.1, exchange: e, routing_key: 'orders.{{ .Payload.v }}'", "routing_key", "#", "!the value holds '#'"},
		{"type: rabbitmq, host: 127.0.0.1, exchange: e, routing_key: 'orders.{{ .Payload.v }}'", "routing_key", "", "!has an empty word"},
		{rabbit + ", message_priority: '{{ .Payload.v }}'", "message_priority", "256", "!a whole number from 0 to 255"},
		{rabbit + ", expiration: '{{ .Payload.v }}'", "expiration", "-1", "!a duration"},
		{rabbit + ", content_type: application/xml, body: '<a>{{ .Payload.v }}</a>'", "body", "</a><b>", "<a>&lt;/a&gt;&lt;b&gt;</a>"},
		{"type: webhook, url: 'https://example.com/o/{{ .Payload.v }}/items'", "url", "a/b?c=1#d", "POST: https://example.com/o/a%2Fb%3Fc%3D1%23d/items\n"},
		{"type: webhook, url: 'https://example.com/o/{{ .Payload.v }}/items'", "url", "", "!a segment of the path is empty or dots"},
		{"type: webhook, url: 'https://example.com/o/{{ .Payload.v }}/items'", "url", "..", "!a segment of the path is empty or dots"},
		{hook + ", headers: {X-Mine: '{{ .Payload.v }}'}", "headers", "a\r\nX-Evil: 1", "!a header has one line"},
		{hook + ", content_type: application/x-www-form-urlencoded, body: 'a={{ .Payload.v }}'", "body", "1&admin=1", "a=1%26admin%3D1\n"},
		{"type: slack, token: xoxb-x, channel: '{{ .Payload.v }}', text: t", "channel", "@boss", "!the id or the name of a channel"},
		{strings.Replace(slack, "text: t", "text: '{{ .Payload.v }}'", 1), "text", "<!channel>", "&lt;!channel&gt;"},
		{slack + `, blocks: '[{"type":"section","text":{"type":"mrkdwn","text":"{{ .Payload.v }}"}}]'`, "blocks", `<!here>"`, `\u0026lt;!here\u0026gt;\"`},
		{slack + ", thread_ts: '{{ .Payload.v }}'", "thread_ts", "x", "!is not the timestamp"},
		{slack + ", username: 'Shop {{ .Payload.v }}'", "username", "a\nb", "username: Shop a b\n"},
		{slack + ", icon_emoji: '{{ .Payload.v }}'", "icon_emoji", "a b", "!is not the name of an emoji"},
		{slack + ", icon_url: 'https://example.com/{{ .Payload.v }}.png'", "icon_url", "a/b", "icon_url: https://example.com/a%2Fb.png\n"},
		{sqs + ", group_id: '{{ .Payload.v }}'", "group_id", "a.b", "group id: a.b\n"},
		{sqs + ", body: '{{ json .Payload.v }}'", "body", "a\"", `"a\""`},
		{sns + ", group_id: '{{ .Payload.v }}'", "group_id", "a.b", "group id: a.b\n"},
		{sns + ", body: '[\"{{ .Payload.v }}\"]'", "body", "a\"", `["a\""]`},
		{bus + ", source: 'shop.{{ .Payload.v }}'", "source", "a.b", "!the value holds '.'"},
		{bus + ", detail_type: '{{ .Payload.v }}'", "detail_type", "a.b", "detail-type: a.b\n"},
		{bus + ", resources: ['{{ .Payload.v }}']", "resources", "notifyd-id:7", "!begins like notifyd's own"},
		{"type: eventbridge, region: eu-central-1, body: '{\"a\":\"{{ .Payload.v }}\"}'", "body", `","b":"`, `{"a":"\",\"b\":\""}`},
		{kinesis + ", partition_key: '{{ .Payload.v }}'", "partition_key", "a.b", "partition key: a.b\n"},
		{kinesis + ", body: '[\"{{ .Payload.v }}\"]'", "body", "a\"", `["a\""]`},
		{pubsub + ", ordering_key: '{{ .Payload.v }}'", "ordering_key", "a.b", "ordering key: a.b\n"},
		{pubsub + ", body: '[\"{{ .Payload.v }}\"]'", "body", "a\"", `["a\""]`},
		{nats + ", subject: 'orders.{{ .Payload.v }}'", "subject", "a.b.c", "!the value holds '.'"},
		{nats + ", subject: 'orders.{{ .Payload.v }}'", "subject", "*", "!the value holds '*'"},
		{nats + ", subject: 'orders.{{ .Payload.v }}'", "subject", ">", "!the value holds '>'"},
		{nats + ", subject: 'orders.{{ .Payload.v }}'", "subject", "", "!empty part"},
		{nats + ", subject: s, content_type: text/plain, body: '{{ .Payload.v }}'", "body", "<&>\"", "<&>\""},
		{redis + ", stream: 'orders:{{ .Payload.v }}'", "stream", "a:b", "!the value holds ':'"},
		{redis + ", channel: 'orders:{{ .Payload.v }}'", "channel", "a b", "!the value holds white space"},
		{redis + ", stream: s, body: '[\"{{ .Payload.v }}\"]'", "body", "a\"", `["a\""]`},
	}
}

// TestTemplateValues: at each destination a value of an event stays in its place, or the event is refused. docs/templates.md
// has a row for each of the settings.
func TestTemplateValues(t *testing.T) {
	t.Parallel()
	tested := make(map[string]bool)
	typeOf := regexp.MustCompile(`^type: (\w+)`)
	for _, c := range templateValues() {
		tested[typeOf.FindStringSubmatch(c.settings)[1]+" "+c.setting] = true
		payload, err := json.Marshal(map[string]string{"v": c.value})
		if err != nil {
			t.Fatal(err)
		}
		event := filepath.Join(t.TempDir(), "event.json")
		if err := os.WriteFile(event, []byte(`{"id": 7, "event_type": "order.placed", "payload": `+string(payload)+`}`), 0o600); err != nil {
			t.Fatal(err)
		}
		path := file(t, "version: 1\ndatabase: {url: 'postgres://nowhere.invalid/x'}\ndestinations:\n  d: {"+c.settings+"}\nroutes: [{match: '*', to: d}]\n")
		r := invoke(t, "template", "test", "--destination", "d", "--event", event, "-c", path)
		want, refused := strings.CutPrefix(c.want, "!")
		switch {
		case refused && (r.code != command.ExitFailure || !strings.Contains(r.stderr, want)):
			t.Errorf("%s, %s of %q: %d: %s%s, want the error %q", c.settings, c.setting, c.value, r.code, r.stdout, r.stderr, want)
		case !refused && (r.code != command.ExitOK || !strings.Contains(r.stdout, want)):
			t.Errorf("%s, %s of %q: %d: %s%s, want %q", c.settings, c.setting, c.value, r.code, r.stdout, r.stderr, want)
		}
	}

	page, err := os.ReadFile("../../docs/templates.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "## Values stay in their place")
	table, _, _ = strings.Cut(table, "\n## ")
	reference, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	section := regexp.MustCompile(`(?s)<!-- settings: type: (\w+) -->(.*?)<!-- end of settings -->`)
	row := regexp.MustCompile("(?m)^\\| `([\\w.]+)` \\| (?:template|list of templates|mapping of templates) \\|")
	found := 0
	for _, kind := range section.FindAllStringSubmatch(string(reference), -1) {
		for _, setting := range row.FindAllStringSubmatch(kind[2], -1) {
			found++
			if !tested[kind[1]+" "+setting[1]] {
				t.Errorf("%s of %s is a template without a row in templateValues", setting[1], kind[1])
			}
			if !strings.Contains(table, "`"+setting[1]+"`") {
				t.Errorf("docs/templates.md does not say what %s of %s makes of a value", setting[1], kind[1])
			}
		}
	}
	if found < len(tested) {
		t.Errorf("%d templates in docs/configuration.md, %d are tested", found, len(tested))
	}
}

// TestReportedAnswerMentionsNoOne: what a receiver answers to an event becomes the report of its dead letter, and is shown in the
// operators' channel as text.
func TestReportedAnswerMentionsNoOne(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	posted := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/partner" {
			http.Error(w, "<!channel> see <https://evil.example|the runbook>", http.StatusUnprocessableEntity)
			return
		}
		var message struct{ Text string }
		if err := json.NewDecoder(r.Body).Decode(&message); err != nil {
			t.Error(err)
		}
		posted <- message.Text
		_, _ = w.Write([]byte("ok"))
	}))
	t.Cleanup(server.Close)
	for _, mode := range []string{"queue", "stream"} {
		url := databaseOf(t, mode)
		startReloadable(t, nil, strings.NewReplacer("DB", url, "URL", server.URL).Replace(`version: 1
database: {url: 'DB'}
destinations:
  partner: {type: webhook, url: URL/partner, on_dead: {to: team}}
  team:
    type: slack
    webhook_url: URL/team
    text: "<!here> {{ with .Event.DeadLetter }}{{ .Destination }}: {{ .Error }}{{ end }}{{ range $key, $value := .Payload }} {{ $key }}{{ end }}"
routes: [{match: '*', to: partner}]
`))
		publishTo(t, url, "order.placed", `{"<!everyone>": 1}`)
		got := testenv.Receive(t, patience, "the report", posted)
		if strings.Count(got, "<") != 1 || !strings.HasPrefix(got, "<!here> partner: ") ||
			!strings.Contains(got, "&lt;!channel&gt; see &lt;https://evil.example|the runbook&gt;") || !strings.HasSuffix(got, " &lt;!everyone&gt;") {
			t.Errorf("%s: %s", mode, got)
		}
	}
}
