package config_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/config"
)

// FuzzParse: Parse returns for every input; every mistake has a position; and an
// accepted configuration can be printed and read again.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"", full, head, "\t", "a: *a", "relay: &r {<<: *r}", "a: &a [*a]", "version: 1\n---\n", "? [a]\n: b", "\xff",
		"version: 1\nroutes: [{match: '*', to: a}]\ndestinations: {a: {type: email, host: '${env:A}', to: [x], extra: {a: [1, ~, .inf]}}}",
		"{", "!!binary x", "<<: 1", "version: 0x1", "relay: {batch: 1_0}", "retention: {keep: 1d1ns}", "log: {level: \"\\q\"}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.Contains(data, []byte("file:")) {
			t.Skip("reads files of this machine")
		}
		c, err := config.Parse("f.yaml", data, registry(), env("A=value"))
		if err != nil {
			checkPlaces(t, err)
			return
		}
		var out bytes.Buffer
		if err := config.Print(&out, c); err != nil {
			t.Fatalf("Print: %v", err)
		}
		if strings.Contains(out.String(), "${redacted}") {
			return // a redacted URL may be invalid
		}
		if _, err := config.Parse("f.yaml", out.Bytes(), registry(), env("A=value")); err != nil {
			t.Errorf("cannot read what was printed: %v\n%s", err, out.String())
		}
	})
}

func checkPlaces(t *testing.T, err error) {
	t.Helper()
	var list *config.Error
	if !errors.As(err, &list) || len(list.Mistakes) == 0 {
		t.Fatalf("not a list of mistakes: %v", err)
	}
	for _, m := range list.Mistakes {
		if m.Line < 1 || m.Column < 1 || m.Message == "" || strings.Contains(m.Message, "\n") {
			t.Errorf("%q has no place or more than a line", m)
		}
	}
}
