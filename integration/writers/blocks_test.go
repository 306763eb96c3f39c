//go:build testall

package writers

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// root is the directory of the module.
const root = "../.."

// fence matches a block of a page, file the first line of one that is a file.
var (
	fence = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")
	file  = regexp.MustCompile(`^(?:#|//) ([\w/.-]+\.\w+)\n`)
)

// workplace is a directory with the programs of a language: the files of testdata, and the blocks of
// the pages as they stand.
func workplace(t *testing.T, language string, fences ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", language))); err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"docs/writers.md", "docs/testing.md"} {
		for _, f := range fences {
			for _, block := range blocksOf(t, page, f) {
				name := file.FindStringSubmatch(block)
				if name == nil {
					t.Fatalf("%s: the first line is not the name of a file:\n%s", page, block)
				}
				testenv.WriteFile(t, filepath.Join(dir, name[1]), block)
			}
		}
	}
	return dir
}

// blocksOf returns the blocks of a page in a language.
func blocksOf(t *testing.T, page, language string) (blocks []string) {
	t.Helper()
	for _, b := range fence.FindAllStringSubmatch(testenv.ReadFile(t, filepath.Join(root, page)), -1) {
		if b[1] == language {
			blocks = append(blocks, b[2])
		}
	}
	return blocks
}

// readme puts the block of README.md in a language into the file that has a place for it.
func readme(t *testing.T, path, language string) {
	t.Helper()
	found := blocksOf(t, "README.md", language)
	if len(found) != 1 {
		t.Fatalf("README.md has %d blocks of %s, want 1", len(found), language)
	}
	program := testenv.ReadFile(t, path)
	indented := regexp.MustCompile(`(?m)^(.)`).ReplaceAllString(found[0], "    $1")
	placed := regexp.MustCompile(`(?m)^(#|//) README\n`).ReplaceAllLiteralString(program, indented)
	if placed == program {
		t.Fatalf("%s has no place for the block of README.md", path)
	}
	testenv.WriteFile(t, path, placed)
}
