package message

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
)

// TestBody: a template makes the body, the headers stay those of the payload, and what must be JSON is.
func TestBody(t *testing.T) {
	t.Parallel()
	ev := &delivery.Event{ID: 7, Type: "order.placed", Payload: []byte(`{"name": "A\"b", "n": 1}`)}
	for name, c := range map[string]struct {
		cfg       handlers.Message
		body, typ string
		err       string
	}{
		"none":     {handlers.Message{}, string(ev.Payload), contentJSON, ""},
		"JSON":     {handlers.Message{Body: `{"who": {{ json .Payload.name }}, "event": {{ .Event.ID }}}`}, `{"who": "A\"b", "event": 7}`, contentJSON, ""},
		"text":     {handlers.Message{Body: `Dear {{ .Payload.name }}`, ContentType: "text/plain"}, `Dear A"b`, "text/plain", ""},
		"+json":    {handlers.Message{Body: `{{ json .Payload }}`, ContentType: "application/vnd.x+json"}, `{"n":1,"name":"A\"b"}`, "application/vnd.x+json", ""},
		"quoted":   {handlers.Message{Body: `{"who": "{{ .Payload.name }}"}`}, `{"who": "A\"b"}`, contentJSON, ""},
		"XML":      {handlers.Message{Body: `<a b="{{ .Payload.name }}"/>`, ContentType: "application/soap+xml"}, `<a b="A&#34;b"/>`, "application/soap+xml", ""},
		"HTML":     {handlers.Message{Body: `<a title="{{ .Payload.name }}"/>`, ContentType: "text/html; charset=utf-8"}, `<a title="A&#34;b"/>`, "text/html; charset=utf-8", ""},
		"form":     {handlers.Message{Body: `who={{ .Payload.name }}&n={{ .Payload.n }}`, ContentType: "application/x-www-form-urlencoded"}, `who=A%22b&n=1`, "application/x-www-form-urlencoded", ""},
		"not JSON": {handlers.Message{Body: `{"who": {{ .Payload.name }}}`}, "", "", `the output of template "body" is not JSON`},
		"missing":  {handlers.Message{Body: `{{ json .Payload.nobody }}`}, "", "", `template "body"`},
	} {
		e, err := New(c.cfg, Kafka())
		if err != nil {
			t.Fatal(err)
		}
		m := e.Encode(ev)
		switch err := e.Render(&m, ev, nil); {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "A\"b") {
				t.Errorf("%s: %v, want %s", name, err, c.err)
			}
		case err != nil || string(m.Body) != c.body || m.ContentType != c.typ || m.Headers[0] != (Header{HeaderID, "7"}):
			t.Errorf("%s: %s, %s, %v, %v", name, m.Body, m.ContentType, m.Headers, err)
		}
		if e.Renders() != (c.cfg.Body != "") {
			t.Errorf("%s: Renders is %t", name, e.Renders())
		}
	}
	for want, cfg := range map[string]handlers.Message{
		"format: body is set too":                  {Body: "{}", Format: handlers.FormatCloudEventsBinary},
		"cloudevents_source: has no effect":        {Body: "{}", Source: "/x"},
		"content_type: works with body only":       {ContentType: "text/plain"},
		"content_type: must be a media type":       {Body: "x", ContentType: "text"},
		"body: yields no JSON, whatever the event": {Body: `{"a": {{ json .Payload.a }},}`},
		`body: template "body", line 1`:            {Body: `{{ .Payload.`},
	} {
		if err := Validate(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", cfg, err, want)
		}
	}
}
