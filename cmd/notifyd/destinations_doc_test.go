package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/destinations"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestDestinationPages previews with the configuration that every page begins with,
// and checks that every type has a page, a line in the table, and the other way round.
func TestDestinationPages(t *testing.T) {
	t.Parallel()
	table := testenv.ReadFile(t, root+"docs/destinations.md")
	pages, err := filepath.Glob("../../docs/destinations/*.md")
	if err != nil {
		t.Fatal(err)
	}
	types := destinations.Registry(".", nil, nil)
	if len(pages) != len(types) {
		t.Errorf("%d pages for %d types", len(pages), len(types))
	}
	for name := range types {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			page := testenv.ReadFile(t, root+"docs/destinations/"+name+".md")
			if !strings.Contains(table, "| [`"+name+"`](destinations/"+name+".md)") {
				t.Error("docs/destinations.md has no line for it")
			}
			for _, heading := range []string{`## What "delivered" means`, "## What is a duplicate", "## When it fails", "## Trace, bytes and check"} {
				if !strings.Contains(page, "\n"+heading) {
					t.Errorf("the page lacks %q", heading)
				}
			}
			example := pasted(t, name+".md") // TestDocsBlocks checks it
			if !strings.Contains(example, "type: "+name) {
				t.Fatalf("the page begins with no configuration:\n%s", example)
			}
			previewed(t, example)
			if name != "slack" { // which drops nothing, and shows no metadata here
				replayed(t, example)
			}
		})
	}
}

// variablesOf gives a value to each variable that a configuration expands, in
// the form that its name promises.
func variablesOf(config string) vars {
	env := vars{}
	for _, m := range regexp.MustCompile(`\$\{env:(\w+)\}`).FindAllStringSubmatch(config, -1) {
		switch name := m[1]; {
		case name == "DATABASE_URL":
			env[name] = "postgres://app@db.example.com:5432/app"
		case name == "INBOX_URL":
			env[name] = "postgres://shop:swordfish@stock.example.com:5432/stock"
		case strings.HasSuffix(name, "_TOKEN"):
			env[name] = "swordfish-and-" + name
		case strings.HasSuffix(name, "_URL"):
			env[name] = "https://hooks.example.com/services/T000/B000/XXXX"
		case strings.HasSuffix(name, "_SECRET"):
			env[name] = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
		default:
			env[name] = "swordfish"
		}
	}
	return env
}

// previewed asks the destination of a configuration what it would send.
func previewed(t *testing.T, config string) {
	t.Helper()
	printed := preview(t, config, `"headers": {"traceparent": "00-1-2-01"}`)
	if printed == "" || strings.Contains(printed, "swordfish") || strings.Contains(printed, "whsec_") {
		t.Errorf("nothing or a secret is shown:\n%s", printed)
	}
}

// replayed asks the destination what it would send of a replayed event: what
// receivers drop duplicates by has to be another.
func replayed(t *testing.T, config string) {
	t.Helper()
	printed := preview(t, config, `"event_id": 42, "replay": 3`)
	if !regexp.MustCompile(`42r3|"replay": ?3`).MatchString(printed) {
		t.Errorf("nothing tells of the replay:\n%s", printed)
	}
}

// preview prints what the first destination of a configuration would send of an event with some more fields.
func preview(t *testing.T, config, fields string) string {
	t.Helper()
	name := regexp.MustCompile(`(?m)^destinations:\n  ([\w-]+):`).FindStringSubmatch(config)
	if name == nil {
		t.Fatalf("the page has no destination:\n%s", config)
	}

	event := filepath.Join(t.TempDir(), "event.json")
	testenv.WriteFile(t, event, `{"event_type": "order.placed", "aggregate_type": "order", "aggregate_id": "7", `+fields+`,
		"payload": {"order": 7, "email": "ann@example.com", "total_cents": 1999, "currency": "EUR", "customer": "Ann", "shop": "main"}}`)
	r := commandIn(t, variablesOf(config), "template", "test", "-c", file(t, config), "--destination", name[1], "--event", event)
	if r.code != 0 {
		t.Errorf("template test: exit code %d: %s%s", r.code, r.stdout, r.stderr)
	}

	return r.stdout
}
