package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/config"
)

func TestExpansion(t *testing.T) {
	t.Parallel()
	path := write(t, "secret", "from file\n")
	big := write(t, "big", strings.Repeat("x", 1<<20+1))
	cases := map[string]struct{ in, want, err string }{
		"plain":             {in: "a", want: "a"},
		"env":               {in: "${env:A}", want: "one"},
		"several":           {in: "${env:A}-${env:B}", want: "one-two: [x]"},
		"default":           {in: "${env:NONE:-d: e}", want: "d: e"},
		"default for empty": {in: "${env:EMPTY:-d}", want: "d"},
		"empty":             {in: "x${env:EMPTY}", want: "x"},
		"empty default":     {in: "x${env:NONE:-}", want: "x"},
		"dollars":           {in: "$$ $$$$ $x a$", want: "$ $$ $x a$"},
		"literal":           {in: "$${env:A}", want: "${env:A}"},
		"not again":         {in: "${env:NEST}", want: "${env:A}"},
		"no YAML":           {in: "${env:INJECT}", want: "x\nlog: {level: debug}"},
		"file":              {in: "${file:" + path + "}", want: "from file"},
		"missing":           {in: "${env:NONE}", err: "the environment variable NONE is not set"},
		"bare":              {in: "${A}", err: "only ${env:NAME}"},
		"open":              {in: "${env:A", err: "without a closing brace"},
		"nested":            {in: "${env:NONE:-${env:A}}", err: "an expansion inside an expansion"},
		"bad name":          {in: "${env:A-B}", err: "letters, digits and underscores"},
		"no name":           {in: "${env:}", err: "letters, digits and underscores"},
		"no file":           {in: "${file:}", err: "names no file"},
		"missing file":      {in: "${file:/not/there}", err: "cannot read the file of ${file:}: open /not/there"},
		"folder":            {in: "${file:/}", err: "is a directory"},
		"big file":          {in: "${file:" + big + "}", err: "is larger than 1 MiB"},
		"two mistakes":      {in: "${env:NONE}${file:}", err: "names no file"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parse(t, head+"destinations: {a: {type: email, to: x, host: '"+c.in+"'}}\n",
				"A=one", "B=two: [x]", "EMPTY=", "NEST=${env:A}", "INJECT=x\nlog: {level: debug}")
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), "notifyd.yaml:2:46: destinations.a.host: ") || !strings.Contains(err.Error(), c.err) {
					t.Errorf("err = %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if host := got.Destinations[0].Settings.(*mailSettings).Host; host != c.want { //nolint:forcetypeassert // a panic fails the test as well
				t.Errorf("got %q, want %q", host, c.want)
			}
		})
	}
}

func TestExpandedFilesAreRelativeToTheConfiguration(t *testing.T) {
	t.Parallel()
	path := write(t, "notifyd.yaml", head+"database: {url: '${file:url}'}\n")
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), "url"), []byte("postgres://h/db\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(path, "", registry(), env())
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Database.URL.Reveal(); got != "postgres://h/db" {
		t.Errorf("url = %q", got)
	}
}

func TestDatabaseURLComesFromTheEnvironment(t *testing.T) {
	t.Parallel()
	const vars = "DATABASE_URL=postgres://env/db"
	if got := mustParse(t, head, vars).Database.URL.Reveal(); got != "postgres://env/db" {
		t.Errorf("without url: %q", got)
	}
	for _, text := range []string{head, head + "database: {url: '${env:DATABASE_URL}'}\n"} {
		if got := mustParse(t, text, vars+"\r\n").Database.URL.Reveal(); got != "postgres://env/db" {
			t.Errorf("with a line break: %q", got)
		}
	}
	if got := mustParse(t, head+"database: {url: postgres://file/db}\n", vars).Database.URL.Reveal(); got != "postgres://file/db" {
		t.Errorf("with url: %q", got)
	}
}

func TestDatabaseURLForms(t *testing.T) {
	t.Parallel()
	for _, good := range []string{
		"postgres://u:p@h1:1,h2:2/db", "postgresql://%2Fvar%2Frun%2Fpostgresql/db", "postgres:///db?host=/tmp",
		"postgres://u:p%40x@[::1]:5432/db", "host=/tmp dbname=db", "postgres://",
	} {
		mustParse(t, head+"database: {url: '"+good+"', listen_url: '"+good+"'}\n")
	}
	for _, bad := range []string{"localhost", "mysql://h/db", "postgres//h/db", "postgres://u:50%@h/db"} {
		if _, err := parse(t, head+"database: {url: '"+bad+"'}\n"); err == nil || strings.Contains(err.Error(), bad) {
			t.Errorf("%s: err = %v", bad, err)
		}
	}
}
