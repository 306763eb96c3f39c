package message

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strings"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// checkBody returns the mistakes in the template of the body, and in the settings that
// depend on it.
func checkBody(c handlers.Message) error {
	var errs []error
	if c.Body != "" && c.Format != "" {
		errs = append(errs, field.Errorf("format", "body is set too: take one of them out"))
	}
	if c.Body == "" && c.ContentType != "" {
		errs = append(errs, field.Errorf("content_type", "works with body only: take it out, or write body"))
	}

	if c.ContentType != "" {
		if kind, _, err := mime.ParseMediaType(c.ContentType); err != nil || !strings.Contains(kind, "/") {
			errs = append(errs, field.Errorf("content_type", "must be a media type such as text/plain; charset=utf-8"))
		}
	}

	_, err := bodyTemplate(c)
	return errors.Join(append(errs, err)...)
}

// bodyTemplate returns the parsed body, or nil without a body.
func bodyTemplate(c handlers.Message) (*tmpl.Template, error) {
	if c.Body == "" {
		return nil, nil //nolint:nilnil // most destinations have none
	}

	t, err := bodyKind(cmp.Or(c.ContentType, contentJSON)).Parse("body", c.Body)
	if err != nil {
		return nil, field.Errorf("body", "%w", err)
	}

	if isJSON(cmp.Or(c.ContentType, contentJSON)) && neverJSON(t) {
		return nil, field.Errorf("body", "yields no JSON, whatever the event: write values as {{ json .Payload.name "+
			"}}, with no comma after the last one, or set content_type")
	}

	return t, nil
}

// bodyKind returns how values are escaped in a body of that media type.
func bodyKind(contentType string) tmpl.Kind {
	kind, _, err := mime.ParseMediaType(contentType)
	switch {
	case err != nil: // checkBody complains
		return tmpl.Text
	case isJSON(contentType):
		return tmpl.JSON
	case kind == "text/html", kind == "application/xhtml+xml":
		return tmpl.HTML
	case kind == "application/xml", kind == "text/xml", strings.HasSuffix(kind, "+xml"):
		return tmpl.XML
	case kind == "application/x-www-form-urlencoded":
		return tmpl.Form
	default:
		return tmpl.Text
	}
}

// neverJSON reports whether a template yields no JSON for any sample of an event: one
// that yields JSON for some values is not a mistake.
func neverJSON(t *tmpl.Template) bool {
	tried := false
	for _, leaf := range []any{"sample", json.Number("1"), true, "2026-01-02T03:04:05Z"} {
		text, err := t.Render(t.Sample("sample", leaf))
		switch {
		case err != nil: // a loop over an unknown value, for example
		case strings.TrimSpace(text) == "", json.Valid([]byte(text)): // or a condition that the sample does not meet
			return false
		default:
			tried = true
		}
	}
	return tried
}

// isJSON reports whether a media type is JSON, or written in it.
func isJSON(contentType string) bool {
	return contentType != "" && (&delivery.Event{ContentType: contentType}).IsJSON()
}

// Renders reports whether the body is made by a template.
func (e *Encoder) Renders() bool { return e.body != nil }

// Raw reports whether the body of ev is bytes that are not JSON: its payload as it is. Transports that take text
// alone, or that have no place for a content type, ask for it.
func (e *Encoder) Raw(ev *delivery.Event) bool {
	return e.body == nil && e.format != handlers.FormatCloudEventsStructured && !ev.IsJSON()
}

// Render puts the body that the template makes of ev into m, the encoded event; without a template m stays
// unchanged. data is the template data of ev; nil makes Render compute it. An error is about the event: another
// attempt would end the same way.
func (e *Encoder) Render(m *Message, ev *delivery.Event, data *tmpl.Data) error {
	if e.body == nil {
		return nil
	}

	if data == nil {
		var err error
		data, err = tmpl.NewData(ev)
		if err != nil {
			return err
		}
	}

	text, err := e.body.Render(data)
	if err != nil {
		return err
	}
	m.Body = []byte(text)
	m.ContentType = e.contentType

	if e.json && !json.Valid(m.Body) {
		return fmt.Errorf("the output of template %q is not JSON: write values as {{ json .Payload.name }}, or set content_type", "body")
	}

	return nil
}
