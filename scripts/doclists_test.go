package scripts

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDocLists: a doc.go that lists the files of its package lists all of them, each once.
func TestDocLists(t *testing.T) {
	t.Parallel()
	line := regexp.MustCompile(`(?m)^//\t([a-z0-9_]+\.go) +[a-z]`)
	lists := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != ".." && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case d.Name() != "doc.go":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var listed []string
		for _, m := range line.FindAllSubmatch(text, -1) {
			listed = append(listed, string(m[1]))
		}
		if len(listed) == 0 {
			return nil
		}
		lists++
		there, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*.go"))
		if err != nil {
			return err
		}
		var files []string
		for _, f := range there {
			if name := filepath.Base(f); name != "doc.go" && !strings.HasSuffix(name, "_test.go") {
				files = append(files, name)
			}
		}
		slices.Sort(listed)
		slices.Sort(files)
		if !slices.Equal(listed, files) {
			t.Errorf("%s lists\n%v\nand the package has\n%v", path, listed, files)
		}
		return nil
	})
	if err != nil || lists < 2 {
		t.Errorf("%d lists: %v", lists, err)
	}
}
