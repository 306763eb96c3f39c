package scripts

import (
	"os"
	"strings"
	"testing"
)

// A reader who opens the repository sees no more than these.
const (
	mostFolders   = 16
	mostRootFiles = 8 // of Go
)

// TestLayout bounds what is at the top of the repository.
func TestLayout(t *testing.T) {
	t.Parallel()
	top, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	var folders, files []string
	for _, e := range top {
		switch name := e.Name(); {
		case strings.HasPrefix(name, "."), name == "bin", name == "dist": // those two are made here, and not tracked
		case e.IsDir():
			folders = append(folders, name)
		case strings.HasSuffix(name, ".go"):
			files = append(files, name)
		}
	}
	if len(folders) > mostFolders || len(folders) < mostFolders/2 {
		t.Errorf("%d folders, at most %d: move one below its subject: %s", len(folders), mostFolders, folders)
	}
	if len(files) > mostRootFiles || len(files) < 2 {
		t.Errorf("%d files of Go, at most %d: what a user of the library does not read belongs below internal: %s", len(files), mostRootFiles, files)
	}
}
