package main

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command/events"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// TestTemplatesPage runs every example of docs/templates.md, and misses no function.
func TestTemplatesPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/templates.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	_, event, _ := strings.Cut(text, "```json\n")
	event, _, _ = strings.Cut(event, "```")
	var f events.EventFile
	if err := json.Unmarshal([]byte(event), &f); err != nil {
		t.Fatal(err)
	}
	data, err := tmpl.NewData(&delivery.Event{
		ID: 1, Type: f.EventType, AggregateType: f.AggregateType, AggregateID: f.AggregateID,
		Payload: f.Payload, Headers: f.Headers, CreatedAt: f.CreatedAt,
	})
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| .* \\| `(\\{\\{.*)` \\| `(.*)` \\|$").FindAllStringSubmatch(text, -1)
	for _, row := range rows {
		source, want := strings.ReplaceAll(row[1], `\|`, "|"), row[2]
		parsed, err := tmpl.Text.Parse("example", source)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if got, err := parsed.Render(data); err != nil || got != want {
			t.Errorf("%s yields %q, %v; the page says %q", source, got, err, want)
		}
	}
	for _, name := range tmpl.FuncNames() {
		if !strings.Contains(text, "\n| `"+name+" ") {
			t.Errorf("docs/templates.md does not have the function %s", name)
		}
	}
	if len(rows) < len(tmpl.FuncNames()) {
		t.Errorf("%d examples for %d functions", len(rows), len(tmpl.FuncNames()))
	}
}
