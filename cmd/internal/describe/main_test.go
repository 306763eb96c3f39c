package main

import (
	"os"
	"path"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

// TestCommittedDescriptionsAreCurrent: notifyd describes each setting as its comment does, and each has one.
func TestCommittedDescriptionsAreCurrent(t *testing.T) {
	t.Parallel()
	found, err := collect(os.DirFS("../../.."))
	if err != nil {
		t.Fatal(err)
	}
	want, err := encode(found)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../config/descriptions.json")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("cmd/internal/config/descriptions.json is not what the comments of the settings say: run go generate ./cmd/notifyd")
	}

	settings := 0
	for _, fields := range found {
		settings += len(fields)
	}
	if settings < 300 {
		t.Errorf("only %d settings were found", settings)
	}
}

// TestCommentsTellDefaults: a comment that names the default of a destination's setting names that of the page.
func TestCommentsTellDefaults(t *testing.T) {
	t.Parallel()
	all, err := settings(os.DirFS("../../.."))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}

	sentence := regexp.MustCompile(`The default is "?(\S+?)"?\.(\s|$)`)
	checks := 0
	for _, s := range all {
		said := sentence.FindStringSubmatch(s.comment)
		if said == nil {
			continue
		}
		checks++

		types := []string{path.Base(s.folder)}
		switch {
		case s.folder == "handlers": // what destinations have in common
			types = []string{"sns", "sqs"}
		case strings.HasPrefix(s.name, "LogConfig."):
			types = []string{"log"}
		}
		for _, name := range types {
			_, table, _ := strings.Cut(string(page), "<!-- settings: type: "+name+" -->")
			_, row, _ := strings.Cut(table, "\n| `"+s.key+"` | ")
			row, _, _ = strings.Cut(row, "\n")
			if cells := strings.Split(row, " | "); len(cells) < 3 || strings.Trim(cells[1], "`") != said[1] {
				t.Errorf("%s: %s: the comment says %q, docs/configuration.md has %q", s.place, s.name, said[1], row)
			}
		}
	}
	if checks < 45 {
		t.Errorf("only %d comments name a default", checks)
	}
}

const declarations = "package p\n\n" + `
// T has settings.
type T struct {
	// Name of
	// the 'one' with ~b <c>: {{ "d" }}~.
	//
	// Go programs leave it out.
	Name string ~json:"n" yaml:"name,omitempty"~
	/* Block. */
	Block int ~yaml:"block"~
	Hidden int ~yaml:"-"~
	Inner ~yaml:",inline"~
	Untagged int
	unset int
}

type (
	// Inner is in a group.
	Inner struct {
		// Deep.
		Deep bool ~yaml:"deep"~
	}
	List []struct{ A int ~yaml:"a"~ }
)

func f() {
	type local struct {
		A int ~yaml:"a"~
	}
}
`

func TestCollect(t *testing.T) {
	t.Parallel()
	source := &fstest.MapFile{Data: []byte(strings.ReplaceAll(declarations, "~", "`"))}
	bare := &fstest.MapFile{Data: []byte("package p\n\ntype U struct {\n\tA int `yaml:\"a\"`\n\n\t// B.\n\tB int `yaml:\"b\"`\n}\n")}
	found, err := collect(fstest.MapFS{
		"p.go": source, "a/b/p.go": source,
		"a/p_test.go": bare, "a/testdata/p.go": bare, ".cache/p.go": bare, "web/node_modules/p.go": bare,
		"other/go.mod": {}, "other/p.go": bare,
	})
	if err != nil {
		t.Fatal(err)
	}

	texts := map[string]string{
		"T.Name":     "Name of the 'one' with `b <c>: {{ \"d\" }}`.",
		"T.Block":    "Block.",
		"Inner.Deep": "Deep.",
	}
	want := descriptions{".": texts, "a/b": texts}
	if !reflect.DeepEqual(found, want) {
		t.Errorf("%q\nwant %q", found, want)
	}

	_, err = collect(fstest.MapFS{"go.mod": {}, "x/p.go": bare, "y/p.go": bare})
	const missing = "x/p.go:4:2: U.A: the setting has no description: add a doc comment\n" +
		"y/p.go:4:2: U.A: the setting has no description: add a doc comment"
	if err == nil || err.Error() != missing {
		t.Errorf("%v\nwant %s", err, missing)
	}
}
