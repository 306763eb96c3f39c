package main

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

// TestCommittedOverviewIsCurrent: docs/destinations.md has the summary of each destination's page.
func TestCommittedOverviewIsCurrent(t *testing.T) {
	t.Parallel()
	root := os.DirFS("../../..")
	want, err := overview(root)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../../" + overviewPage)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s is not what the pages of the destinations say: run go generate ./cmd/notifyd", overviewPage)
	}
}

func TestOverview(t *testing.T) {
	t.Parallel()
	page := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	pigeon := page("# Pigeon\n\n" + summaryHeader + "| it lands | ring | none | no one |\n\nMore.\n")
	root := fstest.MapFS{
		overviewPage:                page("a\n" + tableStart + "old\n" + tableEnd + "b\n"),
		pagesFolder + "/pigeon.md":  pigeon,
		pagesFolder + "/balloon.md": page("# Balloon\n\n" + summaryHeader + "| it rises | `tag` | total | wind |\n\n"),
	}
	got, err := overview(root)
	want := "a\n" + tableStart + `
| Type | Delivered when | Stable id | Order | Copies are dropped by |
|---|---|---|---|---|
| [` + "`balloon`](destinations/balloon.md) | it rises | `tag`" + ` | total | wind |
| [` + "`pigeon`" + `](destinations/pigeon.md) | it lands | ring | none | no one |

` + tableEnd + "b\n"
	if err != nil || string(got) != want {
		t.Errorf("%s\n%v\nwant\n%s", got, err, want)
	}

	for name, c := range map[string]struct {
		path, text, want string
	}{
		"no summary": {pagesFolder + "/pigeon.md", "# Pigeon\n", "docs/destinations/pigeon.md: no summary: add a table"},
		"no place":   {overviewPage, "a\n" + tableStart, "docs/destinations.md: no place for the table"},
	} {
		was := root[c.path]
		root[c.path] = page(c.text)
		if _, err := overview(root); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		root[c.path] = was
	}
}
