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

const modulePath = "github.com/notifyd/notifyd"

// foreign returns the addresses in a line that lead to an account or a host called notifyd:
// the project has none yet, and strangers have some of these. Hosts of documentation
// (example.com) are fine, and so is the module path where it is a name and fetches nothing.
func foreign(line string, moduleIsName bool) (found []string) {
	account := regexp.MustCompile(`(?i)\b((?:[a-z0-9-]+\.)+[a-z]{2,})(?::\d+)?[/:]@?notifyd\b[\w./-]*`)
	fetches := regexp.MustCompile(`(?i)(?:[/@]|\b(?:get|install|clone|run)[ \t]+)$`)
	for _, m := range account.FindAllStringSubmatchIndex(line, -1) {
		address, host := line[m[0]:m[1]], line[m[2]:m[3]]
		name := moduleIsName && strings.HasPrefix(address, modulePath) && !fetches.MatchString(line[:m[0]])
		if !name && host != "example.com" && !strings.HasSuffix(host, ".example.com") {
			found = append(found, address)
		}
	}
	// What precedes it tells a host from a type of Go, such as notifyd.app.
	host := regexp.MustCompile(`(?i)(?://|@|\b[a-z0-9-]+\.)notifyd\.(?:app|cloud|co|com|dev|eu|io|net|org|tech)\b`)
	return append(found, host.FindAllString(line, -1)...)
}

// TestAddresses: no file of the repository leads to an address of someone else.
func TestAddresses(t *testing.T) {
	t.Parallel()
	names := []string{"../README.md", "../.golangci.yaml", "../docs/library.md"} // where, as in Go and in go.mod, the module path is a name
	checked := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains([]string{".git", ".cache", "node_modules"}, d.Name()) || path == "../bin" || path == "../dist"):
			return filepath.SkipDir
		case !d.Type().IsRegular() || path == "../scripts/addresses_test.go":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		checked++
		isName := strings.HasSuffix(path, ".go") || d.Name() == "go.mod" || slices.Contains(names, path)
		line := 0
		for l := range strings.Lines(string(text)) {
			line++
			if !strings.Contains(strings.ToLower(l), "notifyd") {
				continue // what follows is slow
			}
			for _, address := range foreign(l, isName) {
				t.Errorf("%s:%d leads to %s, which is not ours", path, line, address)
			}
		}
		return nil
	})
	if err != nil || checked < 500 {
		t.Errorf("%d files were checked: %v", checked, err)
	}
}

func TestForeign(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"https://github.com/notifyd/notifyd", "home: https://github.com/notifyd", "https://raw.githubusercontent.com/notifyd/notifyd/main/docs/notifyd.schema.json",
		"repository: ghcr.io/notifyd/notifyd", "image: docker.io/notifyd:1", "quay.io/notifyd", "git@github.com:notifyd/notifyd.git", "git clone github.com/notifyd/notifyd",
		"go get github.com/notifyd/notifyd@latest", "go install github.com/notifyd/notifyd/cmd/notifyd@latest", "[docs](https://pkg.go.dev/github.com/notifyd/notifyd/outbox)",
		"pkg:golang/github.com/notifyd/notifyd", "registry.npmjs.org/@notifyd", "https://hub.docker.com:443/notifyd", "https://notifyd.dev/schema.json", "mail security@notifyd.org", "charts.notifyd.io", "my-example.com/notifyd",
	} {
		if got := foreign(text, true); len(got) != 1 {
			t.Errorf("%q leads to %q, want one address", text, got)
		}
	}
	for _, text := range []string{
		"registry.example.com/notifyd:0.1.0", "https://git.example.com/notifyd/blob/main/", "postgres://notifyd@db.example.com/app", "notifyd.example.com", "image: notifyd",
		`import "github.com/notifyd/notifyd/outbox"`, "module github.com/notifyd/notifyd/watermill", "replace github.com/notifyd/notifyd => ../..", "deploy/systemd/notifyd.service", "cmd/notifyd.app is a type", "http://notifyd:9470/metrics",
	} {
		if got := foreign(text, true); len(got) != 0 {
			t.Errorf("%q leads to %q", text, got)
		}
	}
	if got := foreign("see github.com/notifyd/notifyd", false); len(got) != 1 {
		t.Errorf("got %q where the module path is no name", got)
	}
}
