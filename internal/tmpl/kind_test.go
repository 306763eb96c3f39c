package tmpl_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// parser is a Kind or Levels.
type parser interface {
	Parse(name, text string) (*tmpl.Template, error)
}

// TestKinds has a row for what each kind makes of a value: its text, or the beginning of its refusal behind "!".
func TestKinds(t *testing.T) {
	t.Parallel()
	const evil = "<!channel> & [x](https://evil.example) \"q\" \\u003c ../a, b.*\r\nX: 1\x00"
	table := map[parser]map[string]string{
		tmpl.Text: {evil: evil},
		tmpl.Key:  {evil: evil},
		// What reads these parses the whole.
		tmpl.Checked: {evil: evil},
		tmpl.AnyURL:  {evil: evil},
		tmpl.HTML:    {`<b>"`: "&lt;b&gt;&#34;"},
		tmpl.JSON:    {`a","b":"\u003c`: `a\",\"b\":\"\\u003c`, "\n": `\n`, "<&>": "<&>"},
		tmpl.XML:     {`</a><b x='"'>&`: "&lt;/a&gt;&lt;b x=&#39;&#34;&#39;&gt;&amp;"},
		tmpl.Form:    {"a&admin=1 +": "a%26admin%3D1%20%2B", "": ""},
		tmpl.URL: {
			"a/b?c#d&e f": "a%2Fb%3Fc%23d%26e%20f", ".a": ".a", "": "!a segment of the path is empty or dots", ".": "!a segment", "..": "!a segment",
			"a/../b": "!a segment", "/a": "!a segment", "a//b": "!a segment", `..\a`: "!a segment", "..;a": "!a segment",
		},
		tmpl.Path: {"a/../b": "a%2F..%2Fb", `a\b`: "a%5Cb", "": "!a part of the path is empty or dots", ".": "!a part", "..": "!a part", "\x00": "%00"},
		tmpl.Header: {
			"a, b; c": "a, b; c", "a\tb": "a\tb", "a\r\nX: 1": "!the value holds a line end", "a\x00": "!the value holds a line end", "a\u0085X: 1": "!the value holds a line end",
		},
		tmpl.Address: {
			"a@example.com": "a@example.com", "Ann Lee": "Ann Lee", `Ann <a@example.com>`: `"Ann" <a@example.com>`, `"Lee, Ann" <a@example.com>`: `"Lee, Ann" <a@example.com>`,
			"a@example.com, evil@example.com": "!the value is not one e-mail address", "x <evil@example.com>, y": "!the value is not one", `x" <evil@example.com>`: "!the value is not one",
			"a\r\nBcc: evil@example.com": "!the value holds a line end",
		},
		tmpl.SlackText:     {"<!channel> & <https://evil.example|x>": "&lt;!channel&gt; &amp; &lt;https://evil.example|x&gt;"},
		tmpl.SlackBlocks:   {`<!channel>"\u003c`: `&lt;!channel&gt;\"\\u003c`},
		tmpl.SlackMarkdown: {`<a> [x](https://evil.example)`: `&lt;a&gt; \\[x\\](https://evil.example)`},
		tmpl.SlackChannel:  {"C01": "C01", "#general": "#general", "@boss": "!the value holds '@'", "C01,C02": "!the value holds ','", "a b": "!the value holds white space"},
		tmpl.NATSSubject: {
			"acme-1": "acme-1", "a.b.c": "!the value holds '.'", "*": "!the value holds '*'", ">": "!the value holds '>'", "a b": "!the value holds white space", "a\r\nPUB x": "!the value holds a line end",
		},
		tmpl.Levels(".*#"):   {"acme 1": "acme 1", "a.b": "!the value holds '.'", "*": "!the value holds '*'", "#": "!the value holds '#'", "a\n": "!the value holds a line end"},
		tmpl.KafkaTopic:      {"acme_1": "acme_1", "a.b": "!the value holds '.'", "a\n": "!the value holds a line end"},
		tmpl.EventSource:     {"acme": "acme", "a.b": "!the value holds '.'"},
		tmpl.RegistrySubject: {"com.acme.Order": "com.acme.Order", ":.other:x": "!the value holds ':'", "a/b": "!the value holds '/'", `a\b`: `!the value holds '\\'`},
		tmpl.RedisKey:        {"a.b": "a.b", "a:b": "!the value holds ':'", "{a}": "!the value holds '{'", "a b": "!the value holds white space", "a\n": "!the value holds a line end"},
	}
	if len(table) != int(tmpl.EventSource)+2 { // the last one, and Levels
		t.Errorf("%d of %d kinds have a row", len(table), tmpl.EventSource+2)
	}
	for kind, rows := range table {
		for value, want := range rows {
			payload, err := json.Marshal(map[string]any{"v": value, "m": map[string]any{value: 1}})
			if err != nil {
				t.Fatal(err)
			}
			d, err := tmpl.NewData(&delivery.Event{
				AggregateType: value, AggregateID: value, Destination: value, Outbox: value, Payload: payload,
				Headers: map[string]string{"v": value, value: "x"}, DeadLetter: &delivery.DeadLetter{Error: value, Destination: value},
			})
			if err != nil {
				t.Fatal(err)
			}
			// Wherever a value comes from, and whatever functions have made of it.
			for _, action := range []string{
				"{{ .Payload.v }}", "{{ .Headers.v }}", "{{ .Event.AggregateID }}", "{{ .Event.AggregateType }}", "{{ .Event.Destination }}", "{{ .Event.Outbox }}",
				"{{ .Event.DeadLetter.Error }}", "{{ with .Event.DeadLetter }}{{ .Destination }}{{ end }}", "{{ range $k, $v := .Payload.m }}{{ $k }}{{ end }}",
				`{{ get .Payload "v" }}`, "{{ print .Payload.v }}", `{{ printf "%s" .Payload.v }}`, "{{ $x := .Payload.v }}{{ $x }}", `{{ define "t" }}{{ . }}{{ end }}{{ template "t" .Payload.v }}`,
				"{{ .Payload.v | print }}", `{{ if true }}{{ .Payload.v }}{{ end }}`, `{{ print .Payload.v | default "x" }}`,
			} {
				if value == "" && strings.Contains(action, "default") {
					continue
				}
				parsed, err := kind.Parse("subject", action)
				if err != nil {
					t.Fatalf("%v: %s: %v", kind, action, err)
				}
				got, err := parsed.Render(d)
				refusal, refused := strings.CutPrefix(want, "!")
				switch {
				case refused && (err == nil || !strings.Contains(err.Error(), refusal) || !strings.Contains(err.Error(), `template "subject"`)):
					t.Errorf("kind %v, %s of %q: %q, %v; want the error %q", kind, action, value, got, err, refusal)
				case !refused && (err != nil || got != want):
					t.Errorf("kind %v, %s of %q: %q, %v; want %q", kind, action, value, got, err, want)
				}
			}
		}
	}
}

// TestLevelsOfTypes: the dots of a type are levels, and no other value has them.
func TestLevelsOfTypes(t *testing.T) {
	t.Parallel()
	d, err := tmpl.NewData(&delivery.Event{Type: "order.paid", AggregateType: "shop.order", Payload: []byte(`{"v":"a"}`)})
	if err != nil {
		t.Fatal(err)
	}
	const inner = `{{ define "t" }}{{ $.Event.Type }}{{ end }}{{ template "t" . }}`
	for text, want := range map[string]string{
		"orders.{{ .Event.Type }}":                        "orders.order.paid",
		"{{ upper .Event.Type }}":                         "ORDER.PAID",
		`{{ print "x." (lower .Event.Type) }}`:            "x.order.paid",
		`{{ range .Payload }}{{ $.Event.Type }}{{ end }}`: "order.paid",
		`{{ "a.b" }}`:                                     "a.b",
		"{{ .Event.AggregateType }}":                      "",
		"{{ print .Event.Type .Event.AggregateType }}":    "",
		"{{ with .Event.AggregateType }}{{ . }}{{ end }}": "",
		inner: "",
	} {
		for _, kind := range []parser{tmpl.NATSSubject, tmpl.Levels(".*#"), tmpl.KafkaTopic, tmpl.EventSource} {
			parsed, err := kind.Parse("subject", text)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := parsed.Render(d); got != want || (err == nil) != (want != "") {
				t.Errorf("%v: %s: %q, %v, want %q", kind, text, got, err, want)
			}
		}
	}
}

// TestSafeValues: function json writes a value of JSON, and address and join write addresses.
func TestSafeValues(t *testing.T) {
	t.Parallel()
	d, err := tmpl.NewData(&delivery.Event{Payload: []byte(`{"v":"<\"[\\u003c","o":{"<k>":["[1]",2]},"n":1.50,"list":["a@example.com","Ann <b@example.com>"],"bad":["a@example.com, c@example.com"]}`)})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind       tmpl.Kind
		text, want string
	}{
		{tmpl.JSON, `{"a":{{ json .Payload.v }},"b":"{{ .Payload.v }}","n":{{ .Payload.n }}}`, `{"a":"<\"[\\u003c","b":"<\"[\\u003c","n":1.50}`},
		{tmpl.JSON, `{{ $x := json .Payload.o }}{{ $x }}`, `{"<k>":["[1]",2]}`},
		{tmpl.JSON, `"{{ slice (json .Payload.v) 1 }}"`, `"<\\\"[\\\\u003c\""`}, // no whole value any more
		{tmpl.SlackBlocks, `{{ json .Payload.v }}{{ json .Payload.o }}`, `"&lt;\"[\\u003c"{"&lt;k&gt;":["[1]",2]}`},
		{tmpl.SlackMarkdown, `{{ json .Payload.v }}{{ json .Payload.o }}`, `"&lt;\"\\[\\u003c"{"&lt;k&gt;":["\\[1\\]",2]}`},
		{tmpl.SlackText, `{{ json .Payload.o }}`, `{"&lt;k&gt;":["[1]",2]}`},
		{tmpl.Address, `{{ address "Lee, \"Ann\"" "a@example.com" }}`, `"Lee, \"Ann\"" <a@example.com>`},
		{tmpl.Address, `{{ join ", " .Payload.list }}`, `a@example.com, "Ann" <b@example.com>`},
		{tmpl.Address, `{{ range .Payload.list }}{{ . }}, {{ end }}`, `a@example.com, "Ann" <b@example.com>, `},
		{tmpl.Address, `{{ join ", " .Payload.bad }}`, ""},
		{tmpl.Address, `{{ join ", " .Payload.bad | print }}`, ""},
	} {
		parsed, err := c.kind.Parse("body", c.text)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parsed.Render(d); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s:\ngot  %s, %v\nwant %s", c.text, got, err, c.want)
		}
	}
}

// TestSegmentsOfActions: no action leaves a segment of a path empty, also one that prints nothing. The operator's own slashes stay.
func TestSegmentsOfActions(t *testing.T) {
	t.Parallel()
	d, err := tmpl.NewData(&delivery.Event{Payload: []byte(`{"e":"","v":"x","no":false,"dot":"."}`)})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"https://h/a//b/{{ .Payload.v }}/?q={{ .Payload.e }}&r=//":                 "https://h/a//b/x/?q=&r=//",
		"https://h/a-{{ .Payload.e }}/b":                                           "https://h/a-/b",
		"https://h/{{ if .Payload.no }}x{{ end }}{{ .Payload.v }}":                 "https://h/x",
		"https://h/a/{{ if .Payload.no }}x{{ end }}/b":                             "",
		"https://h/a/{{ range .Payload.e | print }}x{{ end }}":                     "",
		"https://h/a/{{ .Payload.e }}":                                             "",
		"https://h/a/{{ .Payload.e }}?q=1":                                         "",
		"https://h/a/.{{ .Payload.dot }}/b":                                        "",
		"https://h/a/{{ .Payload.dot }}{{ .Payload.dot }};v=1/b":                   "",
		`https://h/{{ define "t" }}{{ .e }}{{ end }}{{ template "t" .Payload }}/b`: "",
	} {
		parsed, err := tmpl.URL.Parse("url", text)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parsed.Render(d); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
	if _, err := tmpl.Path.Parse("path", "a\x00{{ .Event.ID }}"); err == nil {
		t.Error("a NUL is accepted")
	}
}
