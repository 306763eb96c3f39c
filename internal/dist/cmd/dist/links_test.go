package main

import (
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/internal/dist"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestNoDeadLinks: each link of a page in an archive leads to a file or a directory in it.
func TestNoDeadLinks(t *testing.T) {
	t.Parallel()
	files, err := dist.Options{Root: "../../../..", Extra: extra()}.Extras(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{".": true}
	for place := range files {
		for dir := place; dir != "."; dir = path.Dir(dir) {
			there[dir] = true
		}
	}

	links := make(map[string]int)
	for place, from := range files {
		if !strings.HasSuffix(place, ".md") {
			continue
		}
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\]\(([^)\s#]+)[^)]*\)`).FindAllStringSubmatch(regexp.MustCompile("(?s)```.*?```").ReplaceAllString(string(text), ""), -1) {
			if strings.Contains(m[1], ":") {
				continue
			}
			links[place]++
			if to := path.Join(path.Dir(place), m[1]); !there[to] {
				t.Errorf("%s leads to %s, which is not in the archive", place, to)
			}
		}
	}
	if links["README.md"] < 30 || links["docs/deploy.md"] < 5 {
		t.Errorf("links are missing: %v", links)
	}
	readme, err := os.ReadFile(files["README.md"])
	if err != nil {
		t.Fatal(err)
	}
	if text := string(readme); !strings.Contains(text, "![The console: ") || strings.Contains(text, "(examples/grpc/go.mod)") {
		t.Error("the picture is missing, or a link to what is not there")
	}
}
