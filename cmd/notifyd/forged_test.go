package main

import (
	"bytes"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/destinations"
	"github.com/notifyd/notifyd/delivery"
)

// TestForgedHeaders: at no destination does an event's own header take the place of what notifyd
// says about the event, or of what the transport needs, in any spelling; each of ours is there once,
// and the event's harmless headers are there.
func TestForgedHeaders(t *testing.T) {
	t.Parallel()
	const forged = "forged-value"
	names := []string{
		"notifyd-id", "notifyd-type", "notifyd-aggregate-type", "notifyd-aggregate-id", "notifyd-time", "notifyd-headers", "notifyd-attempt",
		"notifyd_id", "notifyd_type", "content_type", "ce-id", "ce-type", "ce-subject", "ce_id", "ce_time", "cloudEvents_id", "cloudEvents:id", "content-type", "content-encoding",
	}
	cases := typeCases(t)
	formatted := typesWith("format")
	for _, format := range []string{"", "format: cloudevents_binary", "format: cloudevents_structured"} {
		c := loadText(t, ofEveryType(t, func(kind string) string {
			settings := ""
			if slices.Contains(formatted, kind) {
				settings = format
			}
			if slices.Contains(typesWith("event_headers"), kind) {
				settings = strings.TrimPrefix(settings+", event_headers: [x-mine]", ", ")
			}
			if cases[kind].Headers == "none" {
				settings = strings.Replace(settings, "binary", "structured", 1)
			}
			return settings
		}))
		for _, d := range c.Destinations {
			h, err := destinations.Open(d, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatalf("%s: %v", d.Name, err)
			}
			if closer, ok := h.(io.Closer); ok {
				t.Cleanup(func() { _ = closer.Close() })
			}
			headers := map[string]string{"x-mine": "mine"}
			place := cases[d.Type].Headers
			if place != "apart" {
				for _, name := range slices.Concat(names, cases[d.Type].Forged) {
					headers[name], headers[strings.ToUpper(name)] = forged, forged
				}
			}
			e := &delivery.Event{
				ID: 4711, Type: "order.created", Payload: []byte(`{"a":1}`), Headers: headers, CreatedAt: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC),
				Attempt: 1, Destination: d.Name,
			}
			p, ok := delivery.As[delivery.Previewer](h)
			if !ok {
				t.Errorf("%s shows nothing", d.Name)
				continue
			}
			text, err := p.Preview(e)
			if err != nil {
				t.Errorf("%s: %v", d.Name, err)
				continue
			}
			if strings.Contains(text, forged) {
				t.Errorf("%s, %s: an event's header passes for another:\n%s", d.Name, format, text)
			}
			if place != "none" && !strings.Contains(text, "mine") {
				t.Errorf("%s, %s: the event's own header is lost:\n%s", d.Name, format, text)
			}
			ours := regexp.MustCompile(`(?mi)^(?:header |field |attribute |resource: )?(?:notifyd-|ce[-_]|cloudevents_)?id: *4711$`).FindAllString(text, -1)
			isHeader := format != "format: cloudevents_structured" && place != "none" && slices.Contains(formatted, d.Type)
			if isHeader && len(ours) != 1 {
				t.Errorf("%s, %s: the id is there %d times:\n%s", d.Name, format, len(ours), text)
			}
		}
	}
}

// loadText loads a configuration.
func loadText(t *testing.T, text string) *config.Config {
	t.Helper()
	c, err := config.Load(file(t, text), "", destinations.Registry("", &bytes.Buffer{}, &bytes.Buffer{}), smallestVars().lookup)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
