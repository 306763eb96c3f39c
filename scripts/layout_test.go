package scripts

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var updateModules = flag.Bool("update-modules", false, "write the number of modules into SECURITY.md")

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

// TestNumberOfModules compares the modules that SECURITY.md counts with those that are linked.
func TestNumberOfModules(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	linked := func(pkg string) int {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}", pkg)
		cmd.Dir = ".."
		cmd.Env = append(os.Environ(), "GOOS=linux")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		all := strings.Fields(string(out))
		slices.Sort(all)
		return len(slices.Compact(all))
	}
	want := fmt.Sprintf("links %d of them with what these need, package `outbox` %d, and the program %d,", linked("."), linked("./outbox"), linked("./cmd/notifyd"))
	if strings.Contains(string(page), want) {
		return
	}
	if !*updateModules {
		t.Fatalf("SECURITY.md does not say: %s run go generate ./cmd/notifyd", want)
	}

	said := regexp.MustCompile("links \\d+ of them with what these need, package `outbox` \\d+, and the program [^,]*,")
	changed := said.ReplaceAllLiteral(page, []byte(want))
	if err := os.WriteFile("../SECURITY.md", changed, 0o600); err != nil {
		t.Fatal(err)
	}
}
