package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"time"

	"github.com/notifyd/notifyd/observe"
)

// parsePages returns the templates by page. Each includes the layout.
func parsePages() (map[string]*template.Template, error) {
	layout, err := template.New("layout").Funcs(template.FuncMap{
		"stamp": stamp, "seconds": showSeconds, "number": number, "pretty": pretty, "dict": dict, "pace": func(d time.Duration) string { return showSeconds(d.Seconds()) },
		"rate": showRate,
	}).ParseFS(files, "templates/layout.html", "templates/parts.html")
	if err != nil {
		return nil, err
	}
	pages := make(map[string]*template.Template)
	for _, name := range []string{"overview", "destinations", "events", "event", "dead", "group", "relays", "login", "error"} {
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
func stamp(moment any) string {
	const form = "2006-01-02 15:04:05 UTC"
	switch t := moment.(type) {
	case time.Time:
		return t.UTC().Format(form)
	case *time.Time:
		if t != nil {
			return t.UTC().Format(form)
		}
	}
	return unknown
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
		return "", fmt.Errorf("bug: %T is no number", n)
	}
}

// maxShown bounds the part of a payload that is shown, in bytes.
const maxShown = 64 << 10

// pretty formats JSON for people. Long text is cut, with a note.
func pretty(raw json.RawMessage) string {
	var out bytes.Buffer
	if len(raw) > maxShown {
		return fmt.Sprintf("%s\n... the first %d of %d bytes", bytes.ToValidUTF8(raw[:maxShown], nil), maxShown, len(raw))
	}
	if json.Indent(&out, raw, "", "  ") != nil {
		return string(raw)
	}
	return out.String()
}

// dict combines several values into the argument of a template: key, value, key, value.
func dict(pairs ...any) (map[string]any, error) {
	m := make(map[string]any, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		key, ok := pairs[i].(string)
		if !ok {
			return nil, fmt.Errorf("bug: %v is no key", pairs[i])
		}
		m[key] = pairs[i+1]
	}
	return m, nil
}
