package tmpl_test

import (
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/tmpl"
)

// TestSet: a page fills the blocks of its layout, and both call files, whose dot may be any value.
func TestSet(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"row":    `[{{ .Foo }}{{ template "cell" .Foo }}]`,
		"cell":   `{{ . }}`,
		"unused": `{{ if`,
		"named":  `{{ define "named" }}its own name{{ end }}`,
	}
	set := tmpl.Set{Find: func(name string) (tmpl.Part, bool) {
		text, ok := files[name]
		return tmpl.Part{Name: name, Path: name + ".file", Text: text, Inner: true}, ok
	}}
	layout := tmpl.Part{Name: "layout", Path: "layout.file", Text: `<{{ block "title" . }}none{{ end }}>{{ template "content" . }}`}
	page := tmpl.Part{Name: "content", Path: "page.file", Text: `{{ define "title" }}{{ .Payload.t }}{{ end }}{{ range .Payload.rows }}{{ template "row" . }}{{ end }}{{ template "named" }}`}
	for _, set.Kind = range []tmpl.Kind{tmpl.Text, tmpl.HTML} {
		parsed, err := set.Parse(layout, page)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parsed.Render(data(t, `{"t": "a&b", "rows": [{"Foo": "x<"}, {"Foo": 2}]}`))
		want := "<a&b>[x<x<][22]its own name"
		if set.Kind == tmpl.HTML {
			want = "&lt;a&amp;b>[x&lt;x&lt;][22]its own name"
		}
		if err != nil || got != want || !parsed.Calls("cell") || parsed.Calls("unused") {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
}

// TestUnknownCalls: a template that calls a name that nothing defines is a mistake of the configuration, of each kind.
func TestUnknownCalls(t *testing.T) {
	t.Parallel()
	for _, kind := range []tmpl.Kind{tmpl.Text, tmpl.HTML, tmpl.JSON, tmpl.URL, tmpl.Header, tmpl.Address, tmpl.KafkaTopic} {
		_, err := kind.Parse("setting", "a\n{{ if .Payload.x }}{{ template \"none\" . }}{{ end }}")
		if want := `template "setting", line 2: there is no template "none": write {{define "none"}} before it`; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// marked writes values with marks around them.
type marked string

func (m marked) Money(amount, currency string) string   { return string(m) + amount + currency }
func (m marked) Number(text string) (string, error)     { return string(m) + text, nil }
func (m marked) Date(layout string, t time.Time) string { return string(m) + t.Format(layout) }

func TestLocaleOfData(t *testing.T) {
	t.Parallel()
	const source = `{{ money 1999 "EUR" }} {{ number .Payload.n }} {{ number "2.50" }} {{ number 1e3 }} {{ number "1.25e1" }} {{ date "2006" .Event.CreatedAt }}`
	for _, kind := range []tmpl.Kind{tmpl.Text, tmpl.HTML} {
		parsed, err := kind.Parse("text", source)
		if err != nil {
			t.Fatal(err)
		}
		for _, locale := range []marked{"a", "", "b"} {
			d := data(t, `{"n": 1234567}`)
			want := "19.99 EUR 1234567 2.50 1000 12.5 2026"
			if locale != "" {
				d.SetLocale(locale)
				want = strings.ReplaceAll("~19.99EUR ~1234567 ~2.50 ~1000 ~12.5 ~2026", "~", string(locale))
			}
			if got, err := parsed.Render(d); err != nil || got != want {
				t.Errorf("%q: got %q, %v, want %q", locale, got, err, want)
			}
		}
	}
}

// nested renders another mail while it writes the first number of its own.
type nested struct {
	marked

	other func()
}

func (n nested) Number(text string) (string, error) {
	if text == "1" {
		n.other()
	}
	return n.marked.Number(text)
}

// TestLocalesAtOnce: a template may be rendered in one language while it is being rendered in another.
func TestLocalesAtOnce(t *testing.T) {
	t.Parallel()
	for _, kind := range []tmpl.Kind{tmpl.Text, tmpl.HTML} {
		parsed, err := kind.Parse("text", `{{ number 1 }}{{ number 2 }}`)
		if err != nil {
			t.Fatal(err)
		}

		inner := data(t, `{}`)
		inner.SetLocale(marked("b"))
		outer := data(t, `{}`)
		outer.SetLocale(nested{"a", func() {
			if got, err := parsed.Render(inner); err != nil || got != "b1b2" {
				t.Errorf("within: %q, %v", got, err)
			}
			if got, err := parsed.Render(data(t, `{}`)); err != nil || got != "12" {
				t.Errorf("without a language: %q, %v", got, err)
			}
		}})
		if got, err := parsed.Render(outer); err != nil || got != "a1a2" {
			t.Errorf("got %q, %v", got, err)
		}
	}
}
