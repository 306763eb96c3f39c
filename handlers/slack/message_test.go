package slack

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/slack-go/slack/slacktest"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

const payload = `{"name":"Ada & <!channel>","url":"https://example.com/?a=1&b=2","total":1999,"order":12345678901234567890,"channel":"C9","ts":"1700000000.000100"}`

func yes() *bool { b := true; return &b }

func no() *bool { b := false; return &b }

// TestRequest compares what Slack is asked with what was configured, by both
// ways.
func TestRequest(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const blocks = `[{"type":"section","block_id":"b{{ .Event.ID }}","text":{"type":"mrkdwn","text":{{ json (print "*" .Payload.name "*") }}},"new_thing":7},
	 {"type":"actions","elements":[{"type":"button","url":{{ json .Payload.url }},"value":{{ json .Payload.name }},"text":{"type":"plain_text","text":"A&amp;B"}}]}]`
	wantBlocks := []any{
		map[string]any{
			"type": "section", "block_id": "b42", "new_thing": 7.0,
			"text": map[string]any{"type": "mrkdwn", "text": "*Ada &amp; &lt;!channel&gt;*"},
		},
		map[string]any{"type": "actions", "elements": []any{map[string]any{
			"type": "button", "url": "https://example.com/?a=1&b=2", "value": "Ada & <!channel>",
			"text": map[string]any{"type": "plain_text", "text": "A&amp;B"},
		}}},
	}
	look := func(cfg Config) Config {
		cfg.Text, cfg.Blocks = "<!here> {{ .Payload.name }}\n{{ .Payload.order }}", blocks
		cfg.ThreadTS, cfg.Username, cfg.IconEmoji = "{{ .Payload.ts }}", "Shop {{ .Headers.tenant }}", ":package:"
		cfg.UnfurlLinks, cfg.UnfurlMedia = yes(), no()
		return cfg
	}
	const text = "<!here> Ada &amp; &lt;!channel&gt;\n12345678901234567890"

	cfg := look(config(s.host()))
	cfg.Channel = "{{ .Payload.channel }}"
	e := event(payload)
	e.Headers["traceparent"] = "00-ab"
	if err := newHandler(t, cfg).Deliver(testenv.Within(t, patience), e); err != nil {
		t.Fatal(err)
	}
	got := s.last(t)
	for name, into := range map[string]any{"blocks": new([]any), "metadata": new(map[string]any)} {
		if err := json.Unmarshal([]byte(fmt.Sprint(got[name])), into); err != nil {
			t.Fatal(name, err)
		}
		got[name] = reflect.ValueOf(into).Elem().Interface()
	}
	if want := map[string]any{
		"token": testToken, "channel": "C9", "text": text, "blocks": wantBlocks, "thread_ts": "1700000000.000100",
		"username": "Shop acme", "icon_emoji": ":package:", "unfurl_links": "true", "unfurl_media": "false",
		"metadata": map[string]any{"event_type": "notifyd_event", "event_payload": map[string]any{
			"event_id": "42", "event_type": "order.created", "destination": "team", "traceparent": "00-ab",
		}},
	}; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}

	if err := newHandler(t, look(hookConfig(s.host()))).Deliver(testenv.Within(t, patience), event(payload)); err != nil {
		t.Fatal(err)
	}
	if got, want := s.last(t), map[string]any{
		"text": text, "blocks": wantBlocks, "thread_ts": "1700000000.000100", "username": "Shop acme", "icon_emoji": ":package:",
		"unfurl_links": true, "unfurl_media": false, "replace_original": false, "delete_original": false,
	}; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// TestNothingIsInterpreted: no text of an event, and no answer of another server, mentions people or is a link, wherever a template
// prints it.
func TestNothingIsInterpreted(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const evil = `<!channel> <https://evil.example|x> "&\u003c!here\u003e`
	e := event(jsonOf(`{` + strconv.Quote(evil) + `: 1}`))
	e.Type, e.AggregateType, e.AggregateID, e.Destination, e.Outbox = evil, evil, evil, evil, evil
	e.Headers = map[string]string{evil: evil}
	e.DeadLetter = &delivery.DeadLetter{Destination: evil, Error: evil, Class: evil}
	texts := []string{
		"{{ range $key, $v := .Payload.blocks }}{{ $key }}{{ end }}", "{{ .Payload }}", "{{ json .Payload }}", "{{ range $name, $v := .Headers }}{{ $name }} {{ $v }}{{ end }}",
		"{{ .Event.DeadLetter.Error }}", "{{ with .Event.DeadLetter }}{{ .Destination }} {{ .Class }} {{ .Error | upper }}{{ end }}", "{{ json .Event }}",
		"{{ .Event.Outbox }}", "{{ .Event.Destination }}", "{{ .Event.Type }} {{ .Event.AggregateType }} {{ .Event.AggregateID }}", "{{ printf \"%v\" .Event }}",
	}
	for _, text := range texts {
		for _, block := range []string{
			`{"type":"section","text":{"type":"mrkdwn","text":"Dead: ` + text + `"}}`, // within quotes
			`{"type":"markdown","text":"Dead: ` + text + `"}`,
		} {
			if strings.Contains(text, "json") { // writes quotes of its own
				block = `{"type":"section","text":{"type":"mrkdwn","text":{{ json (print (` + strings.Trim(text, "{}") + `)) }}}}`
			}
			cfg := config(s.host())
			cfg.Text, cfg.Blocks = text, "["+block+"]"
			m, err := newHandler(t, cfg).templates.build(e)
			if err != nil {
				t.Fatalf("%s: %v", block, err)
			}
			var v any
			if err := json.Unmarshal(m.blocks[0], &v); err != nil {
				t.Fatal(err)
			}
			shown := fmt.Sprint(m.text, v)
			if strings.ContainsAny(shown, "<>") || !strings.Contains(strings.ToLower(shown), "&lt;!channel&gt;") {
				t.Errorf("%s: %s", block, shown)
			}
		}
	}
}

// TestLinksOfMarkdown: a value has no links in a block of Markdown, and its URLs stay whole.
func TestLinksOfMarkdown(t *testing.T) {
	t.Parallel()
	cfg := config(startServer(t).host())
	cfg.Blocks = `[{"type":"markdown","text":"[shop](https://shop.example) {{ .Payload.name }}"},{"type":"markdown","text":{{ json .Payload.name }}},` +
		`{"type":"image","image_url":{{ json .Payload.url }},"alt_text":"x"}]`
	m, err := newHandler(t, cfg).templates.build(event(`{"name":"[x](https://evil.example)","url":"https://shop.example/a[1]&b.png"}`))
	if err != nil {
		t.Fatal(err)
	}
	var blocks []map[string]string
	for _, raw := range m.blocks {
		var block map[string]string
		if err := json.Unmarshal(raw, &block); err != nil {
			t.Fatal(err)
		}
		blocks = append(blocks, block)
	}
	const shown = `\[x\](https://evil.example)`
	if blocks[0]["text"] != "[shop](https://shop.example) "+shown || blocks[1]["text"] != shown || blocks[2]["image_url"] != "https://shop.example/a[1]&b.png" {
		t.Errorf("got %q", blocks)
	}
}

// TestIcon: a value stays in its place of a URL with a fixed host, and is the URL where no host is fixed.
func TestIcon(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"https://shop.example/{{ .Payload.v }}.png": "https://shop.example/a%2Fb%3Fc.png", "{{ .Payload.v }}": "a/b?c", "https://shop.example{{ .Payload.v }}": "https://shop.examplea/b?c",
	} {
		cfg := config("127.0.0.1:1")
		cfg.IconURL = text
		m, err := newHandler(t, cfg).templates.build(event(`{"v":"a/b?c"}`))
		if err != nil || m.iconURL != want {
			t.Errorf("%s: %q, %v, want %q", text, m.iconURL, err, want)
		}
	}
}

func TestRawValues(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	cfg := config(s.host())
	cfg.RawValues, cfg.Text, cfg.Blocks = true, "{{ .Payload.name }}", `[{"type":"markdown","text":{{ json .Payload.name }}}]`
	if err := newHandler(t, cfg).Deliver(testenv.Within(t, patience), event(payload)); err != nil {
		t.Fatal(err)
	}
	got := s.last(t)
	var blocks []map[string]string
	if err := json.Unmarshal([]byte(fmt.Sprint(got["blocks"])), &blocks); err != nil {
		t.Fatal(err)
	}
	if got["text"] != "Ada & <!channel>" || blocks[0]["text"] != "Ada & <!channel>" {
		t.Errorf("got %v", got)
	}
}

// TestSlacktest posts to the test server of the library, which reads form and
// blocks with the library's own types.
func TestSlacktest(t *testing.T) {
	t.Parallel()
	s := slacktest.NewTestServer()
	s.Start()
	t.Cleanup(s.Stop)
	cfg := config("")
	cfg.APIURL = s.GetAPIURL()
	cfg.Blocks = `[{"type":"section","text":{"type":"mrkdwn","text":{{ json .Payload.name }}}},{"type":"divider"}]`
	if err := newHandler(t, cfg).Deliver(testenv.Within(t, patience), event(payload)); err != nil {
		t.Fatal(err)
	}
}

// TestBadEvents: an event that cannot be a message is never sent.
func TestBadEvents(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	section := func(text string) string {
		return fmt.Sprintf(`{"type":"section","text":{"type":"mrkdwn","text":%q}}`, text)
	}
	const raw = `{{ with get .Payload "blocks" }}{{ json . }}{{ end }}`
	for name, c := range map[string]struct {
		change        func(*Config)
		payload, want string
	}{
		"no JSON":      {nil, `{`, "the payload is not JSON"},
		"absent":       {func(c *Config) { c.Text = "{{ .Payload.x }}" }, `{}`, `template "text"`},
		"nothing":      {func(c *Config) { c.Text = `{{ get .Payload "x" | default "" }}` }, `{}`, "yield nothing"},
		"no channel":   {func(c *Config) { c.Channel = "{{ .Payload.c }}" }, `{"c":""}`, `"channel" yields nothing`},
		"no timestamp": {func(c *Config) { c.ThreadTS = "{{ .Payload.c }}" }, `{"c":"yesterday"}`, "is not the timestamp"},
		"no emoji":     {func(c *Config) { c.IconEmoji = "{{ .Payload.c }}" }, `{"c":"smile"}`, "is not the name of an emoji"},
		"long text":    {func(c *Config) { c.Text = "{{ .Payload.c }}" }, `{"c":"` + strings.Repeat("ä", 40_001) + `"}`, "40001 characters"},
		"text for a number": {func(c *Config) {
			c.Blocks = `[{"type":"divider","n":{{ fixed 0 .Payload.n }},"x":{{ .Payload.c }}}]`
		}, `{"n":1,"c":"1,\"y\":2"}`, "is not valid JSON"},
		"no array":      {func(c *Config) { c.Blocks = raw }, `{"blocks":"7"}`, "is not a JSON array"},
		"too many":      {func(c *Config) { c.Blocks = raw }, jsonOf(`[` + strings.Repeat(`{"type":"divider"},`, 50) + `{"type":"divider"}]`), "51 blocks"},
		"section":       {func(c *Config) { c.Blocks = raw }, jsonOf(`[` + section(strings.Repeat("x", 3001)) + `]`), "text.text has 3001 characters"},
		"second block":  {func(c *Config) { c.Blocks = raw }, jsonOf(`[` + section("x") + `,{"type":"section"}]`), "in block 2: text and fields are missing"},
		"empty section": {func(c *Config) { c.Blocks = raw }, jsonOf(`[` + section("") + `]`), "text.text is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(s.host())
			if c.change != nil {
				c.change(&cfg)
			}
			err := newHandler(t, cfg).Deliver(testenv.Within(t, patience), event(c.payload))
			if deliverytest.Class(err) != "permanent" || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 500 {
				t.Errorf("%s, want %q: %v", deliverytest.Class(err), c.want, err)
			}
		})
	}
	t.Cleanup(func() {
		if n := s.asked(); n > 0 {
			t.Errorf("%d messages were sent", n)
		}
	})
}

func jsonOf(blocks string) string {
	out, err := json.Marshal(map[string]json.RawMessage{"blocks": json.RawMessage(blocks)})
	if err != nil {
		panic(err)
	}
	return string(out)
}
