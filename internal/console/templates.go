package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"time"

	"github.com/notifyd/notifyd/internal/textview"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
)

// parsePages returns the templates by page. Each includes the layout.
func parsePages() (map[string]*template.Template, error) {
	functions := template.FuncMap{
		"ago":        ago,
		"content":    content,
		"dict":       dict,
		"due":        due,
		"machine":    machine,
		"number":     number,
		"pace":       func(d time.Duration) string { return showSeconds(d.Seconds()) },
		"pretty":     pretty,
		"rate":       showRate,
		"readable":   readable,
		"seconds":    showSeconds,
		"stamp":      stamp,
		"stateClass": stateClass,
		"words":      words,
	}
	layout, err := template.New("layout").Funcs(functions).ParseFS(files, "templates/layout.html", "templates/parts.html")
	if err != nil {
		return nil, err
	}

	names := []string{
		"overview", "destinations", "destination", "pause", "position", "plan", "events", "event",
		"dead", "confirm", "replay", "relays", "outboxes", "login", "error",
	}
	pages := make(map[string]*template.Template)
	for _, name := range names {
		clone, err := layout.Clone()
		if err == nil {
			pages[name], err = clone.ParseFS(files, "templates/"+name+".html")
		}
		if err != nil {
			return nil, err
		}
	}
	return pages, nil
}

// stamp writes a moment; it takes a time.Time or a *time.Time.
func stamp(moment any) string { return format(moment, "2006-01-02 15:04:05 UTC") }

// machine writes a moment for the script that keeps relative times current.
func machine(moment any) string { return format(moment, time.RFC3339) }

func format(moment any, form string) string {
	if t := timeOf(moment); !t.IsZero() {
		return t.UTC().Format(form)
	}
	return unknown
}

// timeOf is the time of a time.Time or a *time.Time, zero for none.
func timeOf(moment any) time.Time {
	switch t := moment.(type) {
	case time.Time:
		return t
	case *time.Time:
		if t != nil {
			return *t
		}
	}
	return time.Time{}
}

// ago writes how long ago a moment was, or how soon it will be. The script has the same.
func ago(moment any) string {
	t := timeOf(moment)
	if t.IsZero() {
		return unknown
	}
	return relative(time.Since(t))
}

// due reports whether a moment has come.
func due(moment any) bool {
	t := timeOf(moment)
	return !t.IsZero() && !t.After(time.Now())
}

func relative(d time.Duration) string {
	text := roughly(d.Abs())
	switch {
	case text == "":
		return "just now"
	case d < 0:
		return "in " + text
	default:
		return text + " ago"
	}
}

// roughly writes a time in its largest unit, "" for less than a second.
func roughly(d time.Duration) string {
	const day = 24 * time.Hour

	for _, u := range []struct {
		upto, unit time.Duration
		name       string
	}{{time.Minute, time.Second, "s"}, {time.Hour, time.Minute, "min"}, {2 * day, time.Hour, "h"}, {700 * day, day, "days"}} {
		if d < u.upto {
			if n := int64(d / u.unit); n > 0 {
				return fmt.Sprintf("%d %s", n, u.name)
			}
			return ""
		}
	}

	return fmt.Sprintf("%d years", int64(d/(365*day)))
}

// number writes a count.
func number(n any) (string, error) {
	switch v := n.(type) {
	case observe.Count:
		if v.More {
			return showCount(float64(v.N)) + "+", nil
		}
		return showCount(float64(v.N)), nil
	case int:
		return showCount(float64(v)), nil
	case int64:
		return showCount(float64(v)), nil
	case uint64:
		return showCount(float64(v)), nil
	default:
		return "", fmt.Errorf("bug: %T is not a number", n)
	}
}

// maxShown bounds the part of a payload that is shown, in bytes.
const maxShown = 64 << 10

// pretty formats JSON for people. Long text is cut, with a note.
func pretty(raw json.RawMessage) string {
	if len(raw) > maxShown {
		return cut(textview.JSON(raw))
	}
	return string(textview.JSON(textview.Indent(raw)))
}

// cut returns the begin of a text, with a note.
func cut(text []byte) string {
	return fmt.Sprintf("%s\n... the first %d of %d bytes", bytes.ToValidUTF8(text[:maxShown], nil), maxShown, len(text))
}

// readable shows bytes: text as it is, and of anything else how it begins.
func readable(data []byte) string {
	if len(data) > maxShown && textview.Text(data) {
		return cut(data)
	}
	return textview.Payload(data)
}

// content shows a payload: JSON formatted, other text as it is, and of anything else how it begins.
func content(e ops.Event) string {
	if e.PayloadBytes != nil && !textview.Text(e.PayloadBytes) {
		return textview.Payload(e.PayloadBytes)
	}

	payload, _ := e.Content()
	return pretty(payload)
}

// dict combines several values into the argument of a template: key, value, key, value.
func dict(pairs ...any) (map[string]any, error) {
	m := make(map[string]any, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		key, ok := pairs[i].(string)
		if !ok {
			return nil, fmt.Errorf("bug: %v is not a key", pairs[i])
		}
		m[key] = pairs[i+1]
	}
	return m, nil
}
