package tmpl_test

import (
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
	"github.com/notifyd/notifyd/internal/tmpl"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func event(payload string) *delivery.Event {
	e := deliverytest.Event("mail", 42, payload)
	e.Attempt = 2
	return e
}

func data(t *testing.T, payload string) *tmpl.Data {
	t.Helper()
	d, err := tmpl.NewData(event(payload))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestRender(t *testing.T) {
	t.Parallel()
	const payload = `{"name":" ada lovelace ","n":12345678901234567890,"price":1.10,"tags":["a",2],
		"cents":1999,"empty":"","none":null,"deep":{"list":[{"x":1}]},"at":"2026-01-02T03:04:05+01:00","html":"<b>&\""}`
	for in, want := range map[string]string{
		`{{.Event.ID}} {{.Event.Type}} {{.Event.AggregateType}}/{{.Event.AggregateID}} {{.Event.Attempt}} {{.Event.Destination}}`: `42 order.created order/A-7 2 mail`,
		`{{.Headers.tenant}}`:                                                              `acme`,
		`{{.Payload.n}} {{.Payload.price}}`:                                                `12345678901234567890 1.10`,
		`{{.Payload.name | trim | title}}`:                                                 `Ada Lovelace`,
		`{{upper "a"}}{{lower "B"}}`:                                                       `Ab`,
		`{{title "o'neil go-mail"}}`:                                                       `O'neil Go-Mail`,
		`{{json .Payload.deep}}`:                                                           `{"list":[{"x":1}]}`,
		`{{json .Payload.html}}`:                                                           `"<b>&\""`,
		`{{get .Payload "a.b" | default "friend"}}`:                                        `friend`,
		`{{get .Payload "deep.list.0.x" | default "no"}}`:                                  `1`,
		`{{get .Headers "x" | default "none"}}`:                                            `none`,
		`{{default "d" .Payload.empty}}`:                                                   `d`,
		`{{default "d" .Payload.none}}`:                                                    `d`,
		`{{required "name it" .Payload.cents}}`:                                            `1999`,
		`{{join ", " .Payload.tags}}`:                                                      `a, 2`,
		`{{date "2006-01-02" .Event.CreatedAt}}`:                                           `2026-03-04`,
		`{{date "02.01.2006 15:04" .Payload.at}}`:                                          `02.01.2026 03:04`,
		`{{money .Payload.cents "eur"}}`:                                                   `19.99 EUR`,
		`{{money .Payload.price "USD"}}`:                                                   `1.10 USD`,
		`{{money "19" "JPY"}} {{money 5 "KWD"}}`:                                           `19 JPY 0.005 KWD`,
		`{{money -5 "EUR"}}`:                                                               `-0.05 EUR`,
		`{{if gt (int .Payload.cents) 1000}}big{{end}}`:                                    `big`,
		`{{address "Ada \"<x@y.z>, b\r\n" "a@example.com"}}`:                               `"Ada \"<x@y.z>, b" <a@example.com>`,
		`{{fixed 1 .Payload.price}}`:                                                       `1.1`,
		`{{trunc 3 "äöüß"}}`:                                                               `äöü`,
		`{{range .Payload.tags}}[{{.}}]{{end}}`:                                            `[a][2]`,
		`{{range $i, $t := .Payload.tags}}{{if $i}},{{end}}{{$t}}{{end}}`:                  `a,2`,
		`{{with .Payload.deep}}{{len .list}}{{end}}`:                                       `1`,
		`{{define "row"}}<{{.}}>{{end}}{{range .Payload.tags}}{{template "row" .}}{{end}}`: `<a><2>`,
		`{{printf "%03d" (int .Payload.cents)}}`:                                           `1999`,
	} {
		tpl, err := tmpl.Text.Parse("subject", in)
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got, err := tpl.Render(data(t, payload)); err != nil || got != want {
			t.Errorf("%s\n got %q, %v\nwant %q", in, got, err, want)
		}
	}
}

func TestHTMLEscapes(t *testing.T) {
	t.Parallel()
	tpl, err := tmpl.HTML.Parse("html", `<p title="{{.Payload.x}}">{{.Payload.x}}</p><a href="{{.Payload.u}}">x</a>`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := tpl.Render(data(t, `{"x":"<b>\"&","u":"javascript:alert(1)"}`))
	want := `<p title="&lt;b&gt;&#34;&amp;">&lt;b&gt;&#34;&amp;</p><a href="#ZgotmplZ">x</a>`
	if err != nil || got != want {
		t.Errorf("got %s, %v\nwant %s", got, err, want)
	}
}

func TestParseErrorsNamePlaceAndCure(t *testing.T) {
	t.Parallel()
	for in, want := range map[string][]string{
		"a\n{{foo .Payload.x}}":                 {`"subject", line 2`, `"foo" not defined`, "use one of address, date"},
		"{{.Payload.x":                          {"line 1", "unclosed action", "close every {{"},
		"{{if .Payload.x}}":                     {"line 1", "unexpected EOF", "{{end}}"},
		"a{{end}}":                              {"line 1", "unexpected {{end}}", "remove it"},
		"{{$x}}":                                {"line 1", "undefined variable", "declare it"},
		"{{.Paylod.x}}":                         {`"subject"`, "no .Paylod", ".Event, .Payload and .Headers"},
		"{{if (.Event.Name)}}x{{end}}":          {"no .Event.Name", "AggregateID"},
		`{{define "a"}}{{template "a"}}{{end}}`: {"calls itself"},
		`{{template "subject" .}}`:              {"calls itself"},
	} {
		_, err := tmpl.Text.Parse("subject", in)
		if err == nil {
			t.Errorf("%q: no error", in)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q: %v\nlacks %q", in, err, w)
			}
		}
	}
	if _, err := tmpl.HTML.Parse("html", "<p>\n<a href='{{.Payload.x}}"); err == nil ||
		!strings.Contains(err.Error(), `template "html", line`) {
		t.Errorf("unclosed attribute: %v", err)
	}
}

func TestExecutionErrorsNameFieldNotPayload(t *testing.T) {
	t.Parallel()
	const payload = `{"s":"hunter2","n":1.5,"l":["hunter2"],"o":{"k":"hunter2"},"none":null,"big":9223372036854775807}`
	for in, want := range map[string]string{
		"{{.Payload.customer}}":                                        ".Payload.customer",
		"a\n{{.Payload.o.name}}":                                       "line 2",
		"{{.Payload.none}}":                                            "null or absent",
		"{{.Payload.none.x}}":                                          ".Payload.none.x",
		"{{.Payload.s.x}}":                                             "not an object",
		"{{.Headers.nope}}":                                            ".Headers.nope",
		`{{get .Payload "x"}}`:                                         "null or absent",
		`{{index .Payload "x"}}`:                                       "null or absent",
		"{{range .Payload.s}}x{{end}}":                                 "not a list",
		"{{range .Payload.n}}x{{end}}":                                 "not a list",
		`{{date "2006" .Payload.s}}`:                                   "RFC 3339",
		`{{money .Payload.s "EUR"}}`:                                   "not a number",
		`{{money 1 .Payload.s}}`:                                       "three letters",
		`{{money "1.999" "EUR"}}`:                                      "more than 2 digits",
		`{{required "give a name" .Payload.none}}`:                     "give a name",
		`{{join "," .Payload.o}}`:                                      "not a list",
		`{{upper .Payload.l}}`:                                         "use json or join",
		`{{address "x" .Payload.s}}`:                                   "not one e-mail address",
		`{{int .Payload.n}}`:                                           "whole number",
		`{{if eq .Payload.n 1}}x{{end}}`:                               "use int",
		`{{fixed 2 "1e999999999"}}`:                                    "not a number",
		`{{range int .Payload.big}}{{end}}`:                            "steps",
		`{{range 2000}}{{printf "%1000d" 1}}{{end}}`:                   "bytes",
		`{{$x := "aaaaaaaa"}}{{range 100}}{{$x = print $x $x}}{{end}}`: "bytes",
		`{{index .Payload.l 7}}`:                                       ".Payload.l",
		`{{slice .Payload.s 90}}`:                                      ".Payload.s",
	} {
		for name, kind := range map[string]tmpl.Kind{"text": tmpl.Text, "html": tmpl.HTML, "JSON": tmpl.JSON, "Slack": tmpl.SlackBlocks} {
			tpl, err := kind.Parse("body", in)
			if err != nil {
				t.Errorf("%s %s: %v", name, in, err)
				continue
			}
			got, err := tpl.Render(data(t, payload))
			if err == nil || got != "" {
				t.Errorf("%s %s: got %q and no error", name, in, got)
				continue
			}
			if msg := err.Error(); !strings.Contains(msg, want) || !strings.Contains(msg, `template "body"`) ||
				strings.Contains(msg, "hunter2") || strings.Contains(msg, presentName) {
				t.Errorf("%s %s: %v\nwant %q", name, in, err, want)
			}
		}
	}
}

const presentName = "present"

// TestDeadLetter: a template tells the report of a dead letter from the event itself.
func TestDeadLetter(t *testing.T) {
	t.Parallel()
	tpl, err := tmpl.Text.Parse("text", `{{ with .Event.DeadLetter }}{{ .Destination }} after {{ .Attempts }}: {{ .Error }}{{ else }}{{ .Event.Type }}{{ end }}`)
	if err != nil {
		t.Fatal(err)
	}
	for want, d := range map[string]*delivery.DeadLetter{"order.created": nil, "mail after 20: no such customer": {Destination: "mail", Attempts: 20, Error: "no such customer"}} {
		data, err := tmpl.NewData(&delivery.Event{Type: "order.created", Payload: []byte(`{}`), DeadLetter: d})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tpl.Render(data); err != nil || got != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
}

func TestPayloadMustBeJSON(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{"", "{", "hunter2", `{"a":1} {"b":2}`, "1 x"} {
		if _, err := tmpl.NewData(event(payload)); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", payload, err)
		}
	}
}

// TestPayloadThatIsNotJSON: a template that asks for it fails, whatever the bytes look like, and any other works.
func TestPayloadThatIsNotJSON(t *testing.T) {
	t.Parallel()
	e := event(`{"name": "hunter2"}`)
	e.ContentType = "avro/binary"
	d, err := tmpl.NewData(e)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []tmpl.Kind{tmpl.Text, tmpl.HTML, tmpl.URL, tmpl.NATSSubject, tmpl.SlackText} {
		for text, want := range map[string]string{
			`{{ .Event.Type }} {{ .Headers.tenant }}`:         "order.created acme",
			`{{ get .Headers "none" | default "a" }}`:         "a",
			`{{ .Payload.name }}`:                             "",
			`{{ get .Payload "name" | default "friend" }}`:    "",
			`{{ with .Payload }}a{{ else }}b{{ end }}`:        "",
			`{{ json .Payload }}`:                             "",
			`{{ range .Headers }}{{ $.Payload }}{{ end }}`:    "",
			`a{{ if eq .Event.ID 1 }}{{ .Payload }}{{ end }}`: "a",
		} {
			tpl, err := kind.Parse("subject", text)
			if err != nil {
				t.Fatal(err)
			}
			got, err := tpl.Render(d)
			switch {
			case !strings.Contains(text, "Payload"), strings.HasPrefix(text, "a{{ if"):
				if err != nil || got != want {
					t.Errorf("%s: %q, %v", text, got, err)
				}
			case err == nil || !strings.Contains(err.Error(), `template "subject", line 1, at {{ `) || !strings.Contains(err.Error(), "the payload is not JSON, but avro/binary: put what"):
				t.Errorf("%s: %q, %v", text, got, err)
			case strings.Contains(err.Error(), "hunter2"):
				t.Errorf("%s: %v shows a value", text, err)
			}
		}
	}
	e.ContentType = "application/vnd.acme+json; v=1"
	if d, err = tmpl.NewData(e); err != nil {
		t.Fatal(err)
	}
	if got, err := d.Payload(); err != nil || got == nil {
		t.Errorf("JSON by its suffix: %v, %v", got, err)
	}
}

func TestConstant(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]bool{"": true, "a@example.com": true, "a{{.Event.ID}}": false, "{{if true}}x{{end}}": false} {
		tpl, err := tmpl.Text.Parse("to", in)
		if err != nil {
			t.Fatal(err)
		}
		if text, ok := tpl.Constant(); ok != want || text != in {
			t.Errorf("%q: %q, %v", in, text, ok)
		}
	}
}

func FuzzParseAndRender(f *testing.F) {
	f.Add(`{{.Payload.a}} {{range .Payload.l}}{{.}}{{end}}`, `{"a":1,"l":[1,2]}`)
	f.Add(`{{define "x"}}{{.}}{{end}}{{template "x" .Payload}}`, `null`)
	f.Add(`{{range int .Payload}}{{end}}`, `9e15`)
	f.Add(`<a href="{{.Payload}}" onclick="{{json .Payload}}">`, `{"a":[]}`)
	f.Add(`{{money .Payload "EUR"}}{{fixed 3 .Payload}}{{date "" .Event.CreatedAt}}`, `"1e64"`)
	f.Add(`{{range $k, $v := .Payload}}{{$k}}{{break}}{{else}}{{trunc 3 "x"}}{{end}}`, `{}`)
	f.Fuzz(func(t *testing.T, text, payload string) {
		d, err := tmpl.NewData(event(payload))
		if err != nil {
			return
		}
		for _, kind := range []tmpl.Kind{tmpl.Text, tmpl.HTML, tmpl.JSON, tmpl.SlackMarkdown, tmpl.URL, tmpl.Address} {
			tpl, err := kind.Parse("t", text)
			if err != nil {
				continue
			}
			out, err := tpl.Render(d)
			if len(out) > tmpl.MaxOutput || (err != nil && out != "") {
				t.Errorf("%d bytes, %v", len(out), err)
			}
		}
	})
}

func Example() {
	tpl, err := tmpl.Text.Parse("subject", `{{.Payload.name | title}}, your order {{.Event.AggregateID}}: {{money .Payload.total "EUR"}}`)
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := tmpl.NewData(&delivery.Event{AggregateID: "A-7", Payload: []byte(`{"name":"ada","total":1999}`)})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(tpl.Render(d))
	// Output: Ada, your order A-7: 19.99 EUR <nil>
}

func TestURLEscapesEveryValue(t *testing.T) {
	t.Parallel()
	data, err := tmpl.NewData(&delivery.Event{Payload: []byte(`{"id":"a/.b?x=1&y=2#z %2f+","n":12.50,"list":["p","q r"]}`)})
	if err != nil {
		t.Fatal(err)
	}
	const escaped = "a%2F.b%3Fx%3D1%26y%3D2%23z%20%252f%2B"
	for text, want := range map[string]string{
		"/o/{{ .Payload.id }}?q={{ .Payload.id | upper | lower }}&n={{ .Payload.n }}":    "/o/" + escaped + "?q=" + escaped + "&n=12.50",
		`{{ define "x" }}{{ .id }}{{ end }}/o/{{ template "x" .Payload }}`:               "/o/" + escaped,
		"/{{ range $i, $v := .Payload.list }}{{ if $i }},{{ end }}{{ $v }}{{ end }}/end": "/p,q%20r/end",
	} {
		tm, err := tmpl.URL.Parse("url", text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tm.Render(data)
		if err != nil || !strings.EqualFold(got, want) {
			t.Errorf("%s: got %s, %v; want %s", text, got, err, want)
		}
	}
	if tm, err := tmpl.URL.Parse("url", "/{{ .Payload.list }}"); err != nil {
		t.Error(err)
	} else if got, err := tm.Render(data); err == nil {
		t.Errorf("a list became %s", got)
	}
}

// TestManyValues: a payload whose values would take many times its size of memory is not decoded, and a template that does
// not use the payload does not notice.
func TestManyValues(t *testing.T) {
	t.Parallel()
	render := func(text, payload string) (string, error) {
		t.Helper()
		d, err := tmpl.NewData(&delivery.Event{ID: 7, Type: "a", Payload: []byte(payload)})
		if err != nil {
			t.Fatal(err)
		}
		x, err := tmpl.Text.Parse("subject", text)
		if err != nil {
			t.Fatal(err)
		}
		return x.Render(d)
	}
	for _, value := range []string{`[]`, `{}`, `1`, `{"a":1}`, `"\",[{"`} {
		few, many := `{"x": [`+strings.Repeat(value+",", tmpl.MaxValues/4)+`1], "y": "z"}`, `{"x": [`+strings.Repeat(value+",", tmpl.MaxValues)+`1], "y": "z"}`
		if got, err := render(`{{ .Payload.y }}`, few); got != "z" || err != nil {
			t.Errorf("%s: %q, %v", value, got, err)
		}
		if _, err := render(`{{ .Payload.y }}`, many); err == nil || !strings.Contains(err.Error(), `template "subject", line 1, at {{ .Payload.y }}: the payload has more than 100000 values (at byte `) {
			t.Errorf("%s: %v", value, err)
		}
		if got, err := render(`{{ .Event.ID }}`, many); got != "7" || err != nil {
			t.Errorf("%s: %q, %v", value, got, err)
		}
	}
	if got, err := render(`{{ .Payload.y }}`, `{"x": "`+strings.Repeat(`,[{`, tmpl.MaxValues)+`", "y": "z"}`); got != "z" || err != nil {
		t.Errorf("a text: %q, %v", got, err)
	}
}
