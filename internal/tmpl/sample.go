package tmpl

import (
	"regexp"
	"strings"
	"time"
)

var (
	// fieldPath finds the payload members that a template uses: .Payload.a.b, and a.b in get .Payload "a.b".
	fieldPath = regexp.MustCompile(`\.Payload((?:\.[A-Za-z_][A-Za-z0-9_]*)+)|\.Payload\s+"([A-Za-z0-9_.]+)"`)
	// headerName finds the headers that a template uses.
	headerName = regexp.MustCompile(`\.Headers(?:\.([A-Za-z_][A-Za-z0-9_]*)|\s+"([^"]+)")`)
)

// Sample returns an event with the members and headers that the text of the template names. Each payload value is leaf,
// and each header and every other field is text.
func (t *Template) Sample(text string, leaf any) *Data {
	payload := make(map[string]any)
	headers := make(map[string]string)

	for _, m := range fieldPath.FindAllStringSubmatch(t.text, -1) {
		path := strings.Split(strings.TrimPrefix(m[1]+m[2], "."), ".")
		at := payload
		for i, key := range path {
			next, isObject := at[key].(map[string]any)
			switch {
			case i == len(path)-1 && !isObject:
				at[key] = leaf
			case !isObject:
				next = make(map[string]any)
				at[key] = next
			}
			at = next
		}
	}

	for _, m := range headerName.FindAllStringSubmatch(t.text, -1) {
		headers[m[1]+m[2]] = text
	}

	return &Data{
		Event: Event{
			ID: 1, Type: text, AggregateType: text, AggregateID: text,
			CreatedAt: time.Date(2026, time.January, 2, 3, 4, 5, 0, time.UTC), Attempt: 1, Destination: "sample",
		},
		Headers: headers, payload: func() (any, error) { return payload, nil },
	}
}
