package main

import (
	"encoding/json"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/destinations"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/schematest"
)

const (
	root          = "../../"
	schemaFile    = root + "docs/notifyd.schema.json"
	referenceFile = root + "docs/configuration.md"
)

func TestCommittedSchemaIsCurrent(t *testing.T) {
	t.Parallel()
	committed, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if got := invoke(t, "config", "schema"); got.code != 0 || got.stdout != string(committed) {
		t.Errorf("docs/notifyd.schema.json is not what \"notifyd config schema\" prints: run go generate ./cmd/notifyd")
	}
}

func TestCommittedReferenceIsCurrent(t *testing.T) {
	t.Parallel()
	committed, err := os.ReadFile(referenceFile)
	if err != nil {
		t.Fatal(err)
	}
	page := file(t, string(committed))
	if r := invoke(t, "config", "reference", page); r.code != 0 {
		t.Fatal(r.stderr)
	}
	got := testenv.ReadFile(t, page)
	was, is := strings.Split(string(committed), "\n"), strings.Split(got, "\n")
	for i := range min(len(was), len(is)) {
		if was[i] != is[i] {
			t.Fatalf("docs/configuration.md is not what the tags of the settings say: run go generate ./cmd/notifyd: line %d is\n%s\nwant\n%s", i+1, was[i], is[i])
		}
	}
}

// update makes TestChartChecksConfig write the schema of the chart.
var update = flag.Bool("update", false, "write the schema of the configuration into the schema of the chart")

// TestChartChecksConfig: the chart checks config as notifyd does. The schema of its values has the whole schema of the
// configuration on one line, without what is for readers; -update writes that line.
func TestChartChecksConfig(t *testing.T) {
	t.Parallel()
	var schema map[string]any
	if err := json.Unmarshal([]byte(testenv.ReadFile(t, schemaFile)), &schema); err != nil {
		t.Fatal(err)
	}
	definitions, _ := schema["$defs"].(map[string]any)
	delete(schema, "$schema")
	delete(schema, "$defs")
	compact, err := json.Marshal(withoutNotes(schema, definitions))
	if err != nil {
		t.Fatal(err)
	}

	const path = deployDir + "/helm/notifyd/values.schema.json"
	line := regexp.MustCompile(`(?m)^    "config": .*$`)
	values := testenv.ReadFile(t, path)
	want := line.ReplaceAllLiteralString(values, `    "config": `+string(compact)+",")
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if values != want {
		t.Errorf("%s checks another configuration: run go test ./cmd/notifyd -run TestChartChecksConfig -update", path)
	}
}

// withoutNotes removes from a schema what checks nothing, and puts the definitions where it refers to them: the chart's
// schema has other ones.
func withoutNotes(schema any, definitions map[string]any) any {
	switch s := schema.(type) {
	case []any:
		for i, part := range s {
			s[i] = withoutNotes(part, definitions)
		}
	case map[string]any:
		if ref, ok := s["$ref"].(string); ok {
			return withoutNotes(definitions[strings.TrimPrefix(ref, "#/$defs/")], definitions)
		}

		for _, note := range []string{"description", "default", "title", "examples"} {
			delete(s, note)
		}
		for key, part := range s {
			if properties, ok := part.(map[string]any); ok && key == "properties" {
				for name, one := range properties {
					properties[name] = withoutNotes(one, definitions)
				}
				continue
			}
			s[key] = withoutNotes(part, definitions)
		}
	}
	return schema
}

// TestExamples holds every configuration that we publish to the schema and to
// the parser: the files called notifyd*.yaml, the complete ones in the
// documentation, and what "config init" writes.
func TestExamples(t *testing.T) {
	t.Parallel()
	schema := compile(t)
	for name, data := range examples(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := schema.Validate(schematest.Instance(t, data)); err != nil {
				t.Errorf("schema: %v", err)
			}
			c, err := config.Parse(name, data, destinations.Registry(filepath.Dir(name), nil, nil), anything)
			if err != nil {
				t.Fatalf("parse: %v", err)
			}
			if len(c.Warnings) > 0 {
				t.Errorf("warnings: %v", c.Warnings)
			}
		})
	}
}

// anything has every variable that an example may name.
func anything(name string) (string, bool) {
	switch {
	case strings.Contains(name, "URL"):
		return "postgres://localhost/app", true
	case name == "ADMIN_TOKEN":
		return strings.Repeat("0123456789", 4), true
	case name == "WEBHOOK_SECRET":
		return webhookSecret, true
	default:
		return "1", true
	}
}

func examples(t *testing.T) map[string][]byte {
	t.Helper()
	all := map[string][]byte{"init": []byte(invoke(t, "config", "init", "-").stdout)}
	for _, folder := range []string{"examples", "deploy"} {
		err := filepath.WalkDir(root+folder, func(path string, d fs.DirEntry, err error) error {
			if match, _ := filepath.Match("notifyd*.yaml", filepath.Base(path)); err != nil || d.IsDir() || !match {
				return err
			}
			all[path], err = os.ReadFile(path)
			return err
		})
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	doc, err := os.ReadFile(referenceFile)
	if err != nil {
		t.Fatal(err)
	}
	for i, block := range strings.Split(string(doc), "```yaml\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		if strings.HasPrefix(block, "version: ") {
			all[referenceFile+string(rune('a'+i))] = []byte(block)
		}
	}
	if len(all) < 2 {
		t.Fatal("the documentation has no example")
	}
	return all
}

func compile(t *testing.T) *jsonschema.Schema {
	t.Helper()
	return schematest.Compile(t, []byte(invoke(t, "config", "schema").stdout))
}
