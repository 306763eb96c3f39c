// Package schematest validates YAML files by a JSON schema, as an editor does.
package schematest

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	yaml "go.yaml.in/yaml/v4"
)

// Compile returns the schema of a text in JSON.
func Compile(tb testing.TB, text []byte) *jsonschema.Schema {
	tb.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		tb.Fatal(err)
	}

	const name = "test.schema.json"
	c := jsonschema.NewCompiler()
	if err := c.AddResource(name, doc); err != nil {
		tb.Fatal(err)
	}

	s, err := c.Compile(name)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// Instance returns a YAML file in the form in which a schema validates it.
func Instance(tb testing.TB, file []byte) any {
	tb.Helper()
	var v any
	if err := yaml.Load(file, &v); err != nil {
		tb.Fatal(err)
	}

	text, err := json.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}

	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		tb.Fatal(err)
	}
	return doc
}
