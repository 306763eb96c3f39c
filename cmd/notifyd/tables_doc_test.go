package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command/events"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/tmpl"
	"github.com/notifyd/notifyd/internal/when"
)

// shownEvent is the event that a page shows as JSON.
func shownEvent(t *testing.T, page string) *delivery.Event {
	t.Helper()
	var f events.EventFile
	if err := json.Unmarshal([]byte(lastBlock(t, page, "json")), &f); err != nil {
		t.Fatal(err)
	}

	return &delivery.Event{
		ID: 1, Type: f.EventType, AggregateType: f.AggregateType, AggregateID: f.AggregateID,
		Payload: f.Payload, Headers: f.Headers, CreatedAt: f.CreatedAt,
	}
}

// TestFiltersPage evaluates every expression of docs/filters.md.
func TestFiltersPage(t *testing.T) {
	t.Parallel()
	const page = "docs/filters.md"
	e := shownEvent(t, page)
	language, err := when.New()
	if err != nil {
		t.Fatal(err)
	}

	rows := regexp.MustCompile("(?m)^\\| `(.*)` \\| (`true`|`false`|fails: .*) \\|$").FindAllStringSubmatch(testenv.ReadFile(t, root+page), -1)
	for _, row := range rows {
		x, err := language.Compile(strings.ReplaceAll(row[1], `\|`, "|"))
		if err != nil {
			t.Errorf("%s: %v", row[1], err)
			continue
		}
		got, err := x.Match(&delivery.Candidate{Event: e})
		if said := "`" + fmt.Sprint(got) + "`"; err == nil && said != row[2] || err != nil && !strings.HasPrefix(row[2], "fails: ") {
			t.Errorf("%s is %t, %v; the page says %s", row[1], got, err, row[2])
		}
	}
	if len(rows) < 14 {
		t.Errorf("%d expressions", len(rows))
	}
}

// TestTemplatesPage runs every example of docs/templates.md, and misses no function.
func TestTemplatesPage(t *testing.T) {
	t.Parallel()
	const page = "docs/templates.md"
	text := testenv.ReadFile(t, root+page)
	data, err := tmpl.NewData(shownEvent(t, page))
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
			t.Errorf("%s does not have the function %s", page, name)
		}
	}
	if len(rows) < len(tmpl.FuncNames()) {
		t.Errorf("%d examples for %d functions", len(rows), len(tmpl.FuncNames()))
	}
}
