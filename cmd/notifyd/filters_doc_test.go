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
	"github.com/notifyd/notifyd/internal/when"
)

// TestFiltersPage evaluates every expression of docs/filters.md.
func TestFiltersPage(t *testing.T) {
	t.Parallel()
	text := testenv.ReadFile(t, "../../docs/filters.md")
	_, event, _ := strings.Cut(text, "```json\n")
	event, _, _ = strings.Cut(event, "```")
	var f events.EventFile
	if err := json.Unmarshal([]byte(event), &f); err != nil {
		t.Fatal(err)
	}
	e := &delivery.Event{ID: 1, Type: f.EventType, AggregateType: f.AggregateType, AggregateID: f.AggregateID, Payload: f.Payload, Headers: f.Headers}
	language, err := when.New()
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `(.*)` \\| (`true`|`false`|fails: .*) \\|$").FindAllStringSubmatch(text, -1)
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
