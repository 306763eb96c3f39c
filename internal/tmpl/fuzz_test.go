package tmpl_test

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/mail"
	"net/url"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// place is a template around a value, and what must be true of each result that is not refused.
type place struct {
	kind parser
	text string
	// stays reports whether the value V stayed in its place.
	stays func(out string) bool
}

// counts returns a check of how often a character is in a result.
func counts(c string, n int) func(string) bool {
	return func(out string) bool {
		return strings.Count(out, c) == n && !strings.ContainsFunc(out, unicode.IsControl)
	}
}

// places has a row for each kind whose values have a place.
func places() []place {
	segments := func(out string) bool {
		u, err := url.Parse(out)
		if err != nil || u.Host != "a.example" {
			return false
		}
		parts, n := strings.Split(u.EscapedPath(), "/"), len(u.Query())
		return len(parts) == 4 && parts[1] == "x" && parts[3] == "y" && n == 1 && u.Fragment == "" && parts[2] != "" && parts[2] != "." && parts[2] != ".."
	}
	return []place{
		{tmpl.URL, "https://a.example/x/V/y?q=V", segments},
		{tmpl.Path, "/var/V/y", func(out string) bool {
			parts := strings.Split(out, "/")
			return len(parts) == 4 && parts[2] != "" && parts[2] != "." && parts[2] != ".." && !strings.Contains(out, "\x00")
		}},
		{tmpl.JSON, `{"a": "V", "b": 1}`, func(out string) bool {
			var v map[string]any
			return json.Unmarshal([]byte(out), &v) == nil && len(v) == 2
		}},
		{tmpl.SlackBlocks, `{"a": "V", "b": 1}`, func(out string) bool {
			var v map[string]any
			return json.Unmarshal([]byte(out), &v) == nil && len(v) == 2 && !strings.ContainsAny(out, "<>")
		}},
		{tmpl.SlackMarkdown, `{"a": "V", "b": 1}`, func(out string) bool {
			var v map[string]string
			_ = json.Unmarshal([]byte(out), &v)
			return !strings.ContainsAny(out, "<>") && strings.Count(v["a"], "[") == strings.Count(v["a"], `\[`)
		}},
		{tmpl.XML, `<r a="V">V<s/></r>`, func(out string) bool {
			elements, d := 0, xml.NewDecoder(strings.NewReader(out))
			for {
				token, err := d.Token()
				if err != nil {
					return errors.Is(err, io.EOF) && elements == 2
				}
				if start, ok := token.(xml.StartElement); ok {
					elements++
					if len(start.Attr) > 1 {
						return false
					}
				}
			}
		}},
		{tmpl.Form, "a=V&b=1", func(out string) bool {
			v, err := url.ParseQuery(out)
			return err == nil && len(v) == 2
		}},
		{tmpl.Header, "x V", counts("\n", 0)},
		{tmpl.Address, "V", func(out string) bool {
			all, err := mail.ParseAddressList(out)
			return err != nil || len(all) == 1
		}},
		{tmpl.SlackText, "V", func(out string) bool { return !strings.ContainsAny(out, "<>") }},
		{tmpl.SlackChannel, "V", func(out string) bool { return !strings.ContainsAny(out, "@, ") }},
		{tmpl.NATSSubject, "orders.V.x", func(out string) bool { return counts(".", 2)(out) && !strings.ContainsAny(out, "*> \t") }},
		{tmpl.Levels(".*#"), "orders.V.x", func(out string) bool { return strings.Count(out, ".") == 2 && !strings.ContainsAny(out, "*#\r\n") }},
		{tmpl.KafkaTopic, "orders.V", counts(".", 1)},
		{tmpl.EventSource, "orders.V", counts(".", 1)},
		{tmpl.RegistrySubject, "orders-V", func(out string) bool { return !strings.ContainsAny(out, `:/\`) }},
		{tmpl.RedisKey, "orders:V", func(out string) bool { return counts(":", 1)(out) && !strings.ContainsAny(out, "{}") }},
	}
}

// FuzzPlaces: whatever a writer puts into the payload, a header, the aggregate or its type, the value stays in its place or the event
// is refused, and the memory is linear in the value.
func FuzzPlaces(f *testing.F) {
	for _, seed := range []string{
		"", "a", "..", "a/../b", `a\..\b`, "%2e%2e", "a.b", "*", ">", "#", "a b", "a\r\nX: 1", "\x00", "<!channel>", "[x](https://evil.example)", `","b":"`, "</r><r>", "]]>", "&amp;", "a&b=2",
		"a@example.com, b@example.com", `"x" <a@example.com>`, "group: a@example.com;", "a@example.com(", "é", "\u202e", "\u2028", "\ufeff", "{tag}", strings.Repeat("<", 1000), `x\`, `\u003c`, "=?utf-8?q?a=2Cb?=",
	} {
		f.Add(seed)
	}
	all := places()
	parsed := make(map[string]*tmpl.Template)
	for _, p := range all {
		for _, source := range []string{"{{ .Payload.v }}", "{{ .Headers.v }}", "{{ .Event.AggregateID }}", "{{ .Event.AggregateType }}", "{{ range $k, $x := .Payload.m }}{{ $k }}{{ end }}", "{{ .Payload.v | upper | lower }}"} {
			text := strings.ReplaceAll(p.text, "V", source)
			t, err := p.kind.Parse("place", text)
			if err != nil {
				f.Fatal(err)
			}
			parsed[source+p.text+fmt.Sprint(p.kind)] = t
		}
	}
	f.Fuzz(func(t *testing.T, value string) {
		if !utf8.ValidString(value) { // PostgreSQL holds text
			return
		}
		payload, err := json.Marshal(map[string]any{"v": value, "m": map[string]int{value: 1}})
		if err != nil {
			t.Fatal(err)
		}
		d, err := tmpl.NewData(&delivery.Event{ID: 7, Type: "a", AggregateType: value, AggregateID: value, Payload: payload, Headers: map[string]string{"v": value}})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = d.Payload()
		for _, p := range all {
			for key, template := range parsed {
				if !strings.HasSuffix(key, p.text+fmt.Sprint(p.kind)) {
					continue
				}
				var out string
				const perByte, once = 256, 1 << 16
				n := testenv.Allocated(func() { out, err = template.Render(d) })
				if n > uint64(perByte*len(payload)+once) {
					t.Errorf("%s: %d bytes are allocated for %d", template.Source(), n, len(payload))
				}
				if err == nil && !p.stays(out) {
					t.Errorf("%s of %q: %q", template.Source(), value, out)
				}
			}
		}
	})
}
