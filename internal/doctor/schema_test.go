package doctor

import (
	"bytes"
	"encoding/csv"
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write schema.tsv anew")

// TestExpectedSchema: what is embedded is what migrate makes.
func TestExpectedSchema(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	parts, err := describe(t.Context(), p.conn, "public")
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	w := csv.NewWriter(&text)
	w.Comma = '\t'
	for _, part := range parts {
		if err := w.Write([]string{part.Kind, part.Table, part.Name, part.Definition}); err != nil {
			t.Fatal(err)
		}
	}
	w.Flush()
	if *update {
		if err := os.WriteFile("schema.tsv", text.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if text.String() != expectedSchema {
		t.Errorf("schema.tsv is out of date: run go test ./internal/doctor -run ExpectedSchema -update\ngot\n%s\nwant\n%s", text.String(), expectedSchema)
	}
	if _, err := expected(); err != nil {
		t.Error(err)
	}
}
