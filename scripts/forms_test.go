package scripts

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDependabot: Dependabot looks at each module and at the workflows. It may ignore
// versions of a module, and no module altogether.
func TestDependabot(t *testing.T) {
	t.Parallel()
	_, bot := parsed[struct {
		Updates []struct {
			Ecosystem   string   `yaml:"package-ecosystem"`
			Directories []string `yaml:"directories"`
			Ignore      []struct {
				Name  string   `yaml:"dependency-name"`
				Types []string `yaml:"update-types"`
			} `yaml:"ignore"`
		} `yaml:"updates"`
	}](t, ".github/dependabot.yml")
	want := modules(t)
	seen := make(map[string]bool)
	for _, u := range bot.Updates {
		seen[u.Ecosystem] = true
		if u.Ecosystem != "gomod" {
			continue
		}
		slices.Sort(u.Directories)
		slices.Sort(want)
		if len(want) < 3 || !slices.Equal(u.Directories, want) {
			t.Errorf("looks at %q, the modules are in %q", u.Directories, want)
		}
		for _, i := range u.Ignore {
			if len(i.Types) == 0 {
				t.Errorf("ignores every version of %s, also the first release of a module that has none", i.Name)
			}
		}
	}
	if !seen["gomod"] || !seen["github-actions"] {
		t.Errorf("looks at %v", seen)
	}
}

// modules returns the directories of the modules, from the root: "/watermill".
func modules(t *testing.T) (all []string) {
	t.Helper()
	for _, pattern := range []string{"../go.mod", "../[^.]*/go.mod", "../[^.]*/*/go.mod", "../[^.]*/*/*/go.mod"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			all = append(all, filepath.Join("/", strings.TrimPrefix(filepath.Dir(path), "..")))
		}
	}
	return all
}

// TestPgxlisten: Dependabot does not move a version that is a commit, so the modules
// that name pgxlisten are compared here.
func TestPgxlisten(t *testing.T) {
	t.Parallel()
	versions := make(map[string][]string)
	for _, module := range modules(t) {
		text, err := os.ReadFile(filepath.Join("..", module, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		if m := regexp.MustCompile(`github\.com/jackc/pgxlisten (\S+)`).FindSubmatch(text); m != nil {
			versions[string(m[1])] = append(versions[string(m[1])], module)
		}
	}
	if len(versions) != 1 {
		t.Errorf("versions of pgxlisten, and the modules that name them: %q", versions)
	}
}

// TestModulesAreChecked: make vets and lints each module, and tests those that have tests. "make bench-peers" alone is about the
// module of that name.
func TestModulesAreChecked(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(makefile), "\n")
	for _, module := range modules(t) {
		if module == "/" || module == "/cmd/bench/peers" {
			continue
		}
		tests, err := filepath.Glob(".." + module + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		for what, wanted := range map[string]bool{"$(GO) vet ./...": true, "$(GOLANGCI) run": true, "scripts/test ": len(tests) > 0} {
			there := slices.ContainsFunc(lines, func(l string) bool {
				return strings.HasPrefix(l, "\tcd "+module[1:]+" && ") && strings.Contains(l, what)
			})
			if there != wanted {
				t.Errorf("%s: make has %q: %v, want %v", module, what, there, wanted)
			}
		}
	}
}

// TestIssueForms: GitHub silently hides a form that it cannot read.
func TestIssueForms(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"bug", "feature"} {
		text, form := parsed[struct {
			Name        string `yaml:"name"`
			Description string `yaml:"description"`
			Body        []struct {
				Type       string         `yaml:"type"`
				ID         string         `yaml:"id"`
				Attributes map[string]any `yaml:"attributes"`
			} `yaml:"body"`
		}](t, ".github/ISSUE_TEMPLATE/"+name+".yml")
		if form.Name == "" || form.Description == "" || len(form.Body) == 0 {
			t.Errorf("%s: %+v", name, form)
		}
		ids := make(map[string]bool)
		for _, b := range form.Body {
			needs := map[string]string{"markdown": "value", "textarea": "label", "input": "label", "checkboxes": "label"}[b.Type]
			if needs == "" || b.Attributes[needs] == nil || b.Type != "markdown" && (b.ID == "" || ids[b.ID]) {
				t.Errorf("%s: %+v", name, b)
			}
			ids[b.ID] = true
		}
		if !strings.Contains(text, "notifyd version") || name == "bug" && (!strings.Contains(text, "notifyd doctor -o json") || !ids["secrets"]) {
			t.Errorf("%s does not ask for the version, the doctor, or to leave out secrets", name)
		}
	}
}
