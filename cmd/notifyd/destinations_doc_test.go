package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/destinations"
)

// TestDestinationPages checks the configuration that every page begins with,
// and that every type has a page, a line in the table, and the other way round.
func TestDestinationPages(t *testing.T) {
	t.Parallel()
	table, err := os.ReadFile("../../docs/destinations.md")
	if err != nil {
		t.Fatal(err)
	}
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
			page, err := os.ReadFile("../../docs/destinations/" + name + ".md")
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(table), "| [`"+name+"`](destinations/"+name+".md)") {
				t.Error("docs/destinations.md has no line for it")
			}
			for _, heading := range []string{`## What "delivered" means`, "## What is a duplicate", "## When it fails", "## Trace, bytes and check"} {
				if !strings.Contains(string(page), "\n"+heading) {
					t.Errorf("the page lacks %q", heading)
				}
			}
			_, example, _ := strings.Cut(string(page), "```yaml\n")
			example, _, _ = strings.Cut(example, "```")
			if !strings.Contains(example, "type: "+name) {
				t.Fatalf("the page begins with no configuration:\n%s", example)
			}
			for _, config := range complete(string(page)) {
				path := file(t, config)
				for _, named := range regexp.MustCompile(`\$\{file:([\w-]+)\}`).FindAllStringSubmatch(config, -1) {
					if err := os.WriteFile(filepath.Join(filepath.Dir(path), named[1]), []byte("https://hooks.example.com/services/T0/B0/x\n"), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				if r := commandIn(t, variablesOf(config), "check-config", "-c", path); r.code != 0 {
					t.Errorf("exit code %d:\n%s\n%s", r.code, r.stderr, config)
				}
			}
			previewed(t, example)
			if name != "slack" { // which drops nothing, and shows no metadata here
				replayed(t, example)
			}
		})
	}
}

// complete returns the configurations of a page that are complete.
func complete(page string) (all []string) {
	for _, block := range strings.Split(page, "```yaml\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		if strings.HasPrefix(block, "version: ") {
			all = append(all, block)
		}
	}
	return all
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

// replayed asks the destination what it would send of a replayed event: what
// receivers drop duplicates by has to be another.
func replayed(t *testing.T, config string) {
	t.Helper()
	event := filepath.Join(t.TempDir(), "event.json")
	const text = `{"event_id": 42, "event_type": "order.placed", "aggregate_type": "order", "aggregate_id": "7", "replay": 3,
		"payload": {"order": 7, "email": "ann@example.com", "total_cents": 1999, "currency": "EUR", "customer": "Ann", "shop": "main"}}`
	if err := os.WriteFile(event, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`(?m)^destinations:\n  ([\w-]+):`).FindStringSubmatch(config)
	r := commandIn(t, variablesOf(config), "template", "test", "-c", file(t, config), "--destination", name[1], "--event", event)
	if r.code != 0 || !regexp.MustCompile(`42r3|"replay": ?3`).MatchString(r.stdout) {
		t.Errorf("exit code %d; nothing tells of the replay:\n%s%s", r.code, r.stdout, r.stderr)
	}
}

// previewed asks the destination of a configuration what it would send.
func previewed(t *testing.T, config string) {
	t.Helper()
	name := regexp.MustCompile(`(?m)^destinations:\n  ([\w-]+):`).FindStringSubmatch(config)
	if name == nil {
		t.Fatalf("the page has no destination:\n%s", config)
	}
	event := filepath.Join(t.TempDir(), "event.json")
	const text = `{"event_type": "order.placed", "aggregate_type": "order", "aggregate_id": "7", "headers": {"traceparent": "00-1-2-01"},
		"payload": {"order": 7, "email": "ann@example.com", "total_cents": 1999, "currency": "EUR", "customer": "Ann", "shop": "main"}}`
	if err := os.WriteFile(event, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := commandIn(t, variablesOf(config), "template", "test", "-c", file(t, config), "--destination", name[1], "--event", event)
	if r.code != 0 || r.stdout == "" {
		t.Errorf("template test: exit code %d: %s%s", r.code, r.stdout, r.stderr)
	}
	if strings.Contains(r.stdout, "swordfish") || strings.Contains(r.stdout, "whsec_") {
		t.Errorf("a secret is shown:\n%s", r.stdout)
	}
}
