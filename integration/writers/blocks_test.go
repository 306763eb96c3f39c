//go:build testall

package writers

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
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
				write(t, filepath.Join(dir, name[1]), block)
			}
		}
	}
	return dir
}

// blocksOf returns the blocks of a page in a language.
func blocksOf(t *testing.T, page, language string) (blocks []string) {
	t.Helper()
	for _, b := range fence.FindAllStringSubmatch(read(t, filepath.Join(root, page)), -1) {
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
	program := read(t, path)
	indented := regexp.MustCompile(`(?m)^(.)`).ReplaceAllString(found[0], "    $1")
	placed := regexp.MustCompile(`(?m)^(#|//) README\n`).ReplaceAllLiteralString(program, indented)
	if placed == program {
		t.Fatalf("%s has no place for the block of README.md", path)
	}
	write(t, path, placed)
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
