package doctor

import (
	"bytes"
	"encoding/csv"
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the descriptions of the schema")

// TestExpectedSchema: the embedded description equals the description of migrate's result.
func TestExpectedSchema(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{"schema.tsv": expectedSchema, "schema_partitioned.tsv": expectedPartitioned} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t)
			if want == expectedPartitioned {
				p.partition()
			}
			compareSchema(t, p, file, want)
		})
	}
}

func compareSchema(t *testing.T, p *patient, file, want string) {
	t.Helper()
	parts, err := describe(t.Context(), p.Conn, "public")
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
		if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if text.String() != want {
		t.Errorf("%s is out of date: run go test ./cmd/internal/doctor -run ExpectedSchema -update\ngot\n%s\nwant\n%s", file, text.String(), want)
	}
	if _, err := expected(want); err != nil {
		t.Error(err)
	}
}
