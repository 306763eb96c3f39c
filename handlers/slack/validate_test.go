package slack

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	const hidden = "sesame-open"
	for name, c := range map[string]struct {
		change     func(*Config)
		path, text string
	}{
		"nobody":            {func(c *Config) { c.Token = handlers.Secret{} }, "token", "missing"},
		"both":              {func(c *Config) { c.WebhookURL = handlers.NewSecret("https://hooks.slack.com/x") }, "webhook_url", "token is set too"},
		"token of an app":   {func(c *Config) { c.Token = handlers.NewSecret("xapp-" + hidden) }, "token", "app-level token"},
		"webhook as token":  {func(c *Config) { c.Token = handlers.NewSecret("https://hooks.slack.com/" + hidden) }, "token", "webhook_url"},
		"token with line":   {func(c *Config) { c.Token = handlers.NewSecret(hidden + "\n") }, "token", "white space"},
		"no channel":        {func(c *Config) { c.Channel = "" }, "channel", "missing"},
		"no text":           {func(c *Config) { c.Text = " " }, "text", "missing"},
		"two icons":         {func(c *Config) { c.IconEmoji, c.IconURL = ":a:", "https://example.com" }, "icon_url", "icon_emoji is set too"},
		"emoji":             {func(c *Config) { c.IconEmoji = "smile" }, "icon_emoji", ":package:"},
		"timestamp":         {func(c *Config) { c.ThreadTS = "12" }, "thread_ts", "1700000000.000100"},
		"api":               {func(c *Config) { c.APIURL = "slack.com/api" }, "api_url", "must be a URL"},
		"api unencrypted":   {func(c *Config) { c.APIURL = "http://example.com/api" }, "api_url", "unencrypted"},
		"api with password": {func(c *Config) { c.APIURL = "https://a:" + hidden + "@example.com/api" }, "api_url", "password"},
		"api with query":    {func(c *Config) { c.APIURL = "https://example.com/api?x" }, "api_url", "must end"},
		"webhook": {func(c *Config) {
			*c = Config{WebhookURL: handlers.NewSecret("hooks.slack.com/" + hidden), Text: "x"}
		}, "webhook_url", "must be a URL"},
		"webhook unencrypted": {func(c *Config) {
			*c = Config{WebhookURL: handlers.NewSecret("http://example.com/" + hidden), Text: "x"}
		}, "webhook_url", "unencrypted"},
		"webhook with channel": {func(c *Config) {
			*c = Config{WebhookURL: handlers.NewSecret("https://example.com/" + hidden), Text: "x", Channel: "C1"}
		}, "channel", "decided by the webhook"},
		"webhook with api": {func(c *Config) {
			*c = Config{WebhookURL: handlers.NewSecret("https://example.com/" + hidden), Text: "x", APIURL: "https://example.com"}
		}, "api_url", "has no effect"},
		"timeout":           {func(c *Config) { c.RequestTimeout = -1 }, "request_timeout", "positive"},
		"key":               {func(c *Config) { c.TLS = &handlers.TLS{KeyFile: "x"} }, "tls.cert_file", "missing"},
		"template":          {func(c *Config) { c.Text = "{{ .Paylod.x }}" }, "text", "there is no .Paylod"},
		"constant blocks":   {func(c *Config) { c.Blocks = `[{"type":"divider"},{"type":"sectoin"}]` }, "blocks", `block 2: unknown type "sectoin"`},
		"blocks of others":  {func(c *Config) { c.Blocks = `[{"type":"section","text":"x"}]` }, "blocks", "not a text object"},
		"blocks with comma": {func(c *Config) { c.Blocks = "[\n{\"type\":\"divider\"},\n]" }, "blocks", "near line 3"},
		"no blocks":         {func(c *Config) { c.Blocks = `{"type":"divider"}` }, "blocks", "not a JSON array"},
		"accessory": {func(c *Config) {
			c.Blocks = `[{"type":"actions","elements":[{"type":"buton"}]}]`
		}, "blocks", "unsupported block element type buton"},
		"same id": {func(c *Config) {
			c.Blocks = `[{"type":"divider","block_id":"a"},{"type":"divider","block_id":"a"}]`
		}, "blocks", "block_id"},
		"header": {func(c *Config) {
			c.Blocks = `[{"type":"header","text":{"type":"plain_text","text":"` + strings.Repeat("x", 151) + `"}}]`
		}, "blocks", "151 characters"},
		"fields": {func(c *Config) {
			c.Blocks = `[{"type":"section","fields":[` + strings.Repeat(`{"type":"mrkdwn","text":"x"},`, 10) + `{"type":"mrkdwn","text":"x"}]}]`
		}, "blocks", "11 fields"},
		"context":  {func(c *Config) { c.Blocks = `[{"type":"context","elements":[]}]` }, "blocks", "0 elements"},
		"markdown": {func(c *Config) { c.Blocks = `[{"type":"markdown","text":"` + strings.Repeat("x", 12_001) + `"}]` }, "blocks", "12000 characters"},
		// By the sample.
		"value without quotes": {func(c *Config) {
			c.Blocks = `[{"type":"header","text":{"type":"plain_text","text":{{ .Headers.tenant }}}}]`
		}, "blocks", "write each value as {{ json .Payload.x }}"},
		"whole blocks in a text": {func(c *Config) { c.Blocks = `{{ .Payload.blocks }}` }, "blocks", "write each value"},
		"sampled comma":          {func(c *Config) { c.Blocks = `[{"type":"markdown","text":{{ json .Payload.x }}},]` }, "blocks", "no comma after the last one"},
		"sampled type":           {func(c *Config) { c.Blocks = `[{"type":"markdwon","text":{{ json .Payload.x }}}]` }, "blocks", `block 1: unknown type "markdwon"`},
		"sampled money":          {func(c *Config) { c.Blocks = `[{"type":"section","txt":{{ json (money .Payload.x "EUR") }}}]` }, "blocks", "text and fields are missing"},
		"sampled date":           {func(c *Config) { c.Blocks = `[{"type":"section","txt":{{ json (date "2006" .Payload.at) }}}]` }, "blocks", "text and fields are missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Token: handlers.NewSecret("xoxb-" + hidden), Channel: "C1", Text: "x"}
			c.change(&cfg)
			errs := field.Split(cfg.Validate())
			if len(errs) != 1 || field.Path(errs[0]) != c.path || !strings.Contains(errs[0].Error(), c.text) || strings.Contains(errs[0].Error(), hidden) {
				t.Errorf("got %v, want %s: %s", errs, c.path, c.text)
			}
			if _, err := New(cfg); err == nil {
				t.Error("New takes it")
			}
		})
	}
}

// TestValidTemplates: the sample must not refuse what the payload decides.
func TestValidTemplates(t *testing.T) {
	t.Parallel()
	for _, blocks := range []string{
		`[{"type":"divider"}]`,
		`{"blocks":[{"type":"divider"}]}`,
		`{{ json .Payload.blocks }}`,
		`[{"type":"header","text":{"type":"plain_text","text":"Order {{ .Payload.o.n }} of {{ .Headers.tenant }}"}}]`,
		`[{{ json .Payload.first }}, {"type":"divider"}]`,
		`[{"type":"section","text":{{ json .Payload.object }}}]`,
		`[{"type":{{ json .Payload.type }},"text":{"type":"mrkdwn","text":"x"}}]`,
		`[{"type":"section","text":{"type":"mrkdwn","text":{{ json (print "Order " .Payload.a.b " of " (get .Payload "a.c")) }}}}]`,
		`[{"type":"section","text":{"type":"mrkdwn","text":{{ json (money .Payload.total "EUR") }}}}]`,
		`[{"type":"header","text":{"type":"plain_text","text":"{{ int .Payload.n }}"}}]`,
		`[{"type":"section","fields":[{{ range $i, $x := .Payload.items }}{{ if $i }},{{ end }}{"type":"mrkdwn","text":{{ json $x.name }}}{{ end }}]}]`,
		`{{ if eq .Payload.kind "a" }}[{"type":"divider"}]{{ end }}`,
		`[{"type":"section","text":{"type":"mrkdwn","text":{{ json .Headers.tenant }}}}, {"type":"image","image_url":{{ json .Payload.url }},"alt_text":"x"}]`,
	} {
		cfg := Config{Token: handlers.NewSecret("xoxb-x"), Channel: "#shop", Blocks: blocks}
		if err := cfg.Validate(); err != nil {
			t.Errorf("%s: %v", blocks, err)
		}
	}
}
