package slack

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/slack-go/slack/slacktest"

	"github.com/notifyd/notifyd/internal/testenv"
	"github.com/notifyd/notifyd/internal/testenv/deliverytest"
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
	const raw = `{{ get .Payload "blocks" | default "" }}`
	for name, c := range map[string]struct {
		change        func(*Config)
		payload, want string
	}{
		"no JSON":      {nil, `{`, "the payload is not JSON"},
		"absent":       {func(c *Config) { c.Text = "{{ .Payload.x }}" }, `{}`, `template "text"`},
		"nothing":      {func(c *Config) { c.Text = `{{ get .Payload "x" | default "" }}` }, `{}`, "yield nothing"},
		"no channel":   {func(c *Config) { c.Channel = "{{ .Payload.c }}" }, `{"c":" "}`, `"channel" yields nothing`},
		"no timestamp": {func(c *Config) { c.ThreadTS = "{{ .Payload.c }}" }, `{"c":"yesterday"}`, "is not the timestamp"},
		"no emoji":     {func(c *Config) { c.IconEmoji = "{{ .Payload.c }}" }, `{"c":"smile"}`, "is not the name of an emoji"},
		"long text":    {func(c *Config) { c.Text = "{{ .Payload.c }}" }, `{"c":"` + strings.Repeat("ä", 40_001) + `"}`, "40001 characters"},
		"quote": {func(c *Config) {
			c.Blocks = `[{"type":"header","text":{"type":"plain_text","text":"{{ fixed 0 .Payload.n }}{{ .Payload.c }}"}}]`
		}, `{"n":1,"c":"a\"b"}`, "is not valid JSON"},
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
	out, err := json.Marshal(map[string]string{"blocks": blocks})
	if err != nil {
		panic(err)
	}
	return string(out)
}
