package main

import (
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// fence is one block of a page.
type fence struct{ language, text string }

func fences(page string) (list []fence) {
	for _, m := range regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$").FindAllStringSubmatch(page, -1) {
		list = append(list, fence{m[1], m[2]})
	}
	return list
}

// docPages are all that a reader may copy from.
func docPages(t *testing.T) (list []string) {
	t.Helper()
	for _, pattern := range []string{"README.md", "ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md", "docs/*.md", "docs/design/*.md", "docs/destinations/*.md", "examples/README.md", "examples/*/README.md", "cmd/bench/*/README.md", "handlers/watermill/README.md"} {
		found, err := filepath.Glob(root + pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		list = append(list, found...)
	}
	return list
}

// completed makes a file of a section that a page shows alone.
func completed(config string) string {
	if !regexp.MustCompile(`(?m)^version:`).MatchString(config) {
		config = "version: 1\n" + config
	}
	if !regexp.MustCompile(`(?m)^destinations:`).MatchString(config) {
		config += "destinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\n"
	}
	return config
}

// checked has the program check a configuration, with the variables and the secret
// files that it names.
func checked(t *testing.T, page, config string) {
	t.Helper()
	if bundle := "/etc/ssl/rds/global-bundle.pem"; strings.Contains(config, bundle) {
		cert := certificate()
		config = strings.ReplaceAll(config, bundle, file(t, cert))
	}
	path := file(t, completed(config))
	besideConfig(t, path, config)
	if r := commandIn(t, variablesOf(config), "check-config", "-c", path); r.code != 0 {
		t.Errorf("%s: %s\n%s", page, r.stderr, config)
	}
}

// besideConfig writes the files beside a configuration that it names: secrets, what mails attach and are signed with, and the
// templates of the example.
func besideConfig(t *testing.T, path, config string) {
	t.Helper()
	dir := filepath.Dir(path)
	for _, m := range regexp.MustCompile(`\$\{file:([\w-]+)\}`).FindAllStringSubmatch(config, -1) {
		testenv.WriteFile(t, filepath.Join(dir, m[1]), "https://hooks.example.com/services/T000/B000/token")
	}

	for _, m := range regexp.MustCompile(`\b(key_file|file): ([\w/.-]+)`).FindAllStringSubmatch(config, -1) {
		if filepath.IsAbs(m[2]) {
			continue
		}
		text := "content"
		if m[1] == "key_file" {
			_, text = selfSigned(t)
		}
		testenv.WriteFile(t, filepath.Join(dir, m[2]), text)
	}

	_, err := os.Stat(filepath.Join(dir, "mail", "base.html"))
	if err == nil || !strings.Contains(config, "templates: ./mail") {
		return
	}
	if err := os.CopyFS(filepath.Join(dir, "mail"), os.DirFS(root+"examples/mail/mail")); err != nil {
		t.Fatal(err)
	}
}

// TestDocsBlocks checks the configurations of all pages, runs the SQL of those that have
// no test, and demands of every other step that there is a test which runs it.
func TestDocsBlocks(t *testing.T) {
	t.Parallel()
	url, ran := database(t), map[string]int{}
	tests, compile, run := pageTests(), compilers(), runners()
	checkPageTests(t, tests)
	checkPageTests(t, compile)
	for _, path := range docPages(t) {
		page := strings.TrimPrefix(path, root)
		for _, st := range steps(testenv.ReadFile(t, path)) {
			ran[st.language]++
			line := st.line()
			switch st.language {
			case "sh":
				if tests[page].test == "" && !isUntested(line) {
					t.Errorf("%s, %q: nothing runs %s: run it in a test, or add a rule to untested() with the reason", page, st.heading, line)
				}
			case "inline":
				if !strings.HasPrefix(strings.TrimPrefix(line, "bin/"), "notifyd ") && !isUntested(line) {
					t.Errorf("%s, %q: nothing runs %s: add a rule to untested() with the reason", page, st.heading, line)
				}
			case "go":
				if compile[page].test == "" {
					t.Errorf("%s, %q: nothing compiles this:\n%s", page, st.heading, st.text)
				}
			case "sql":
				if tests[page].test == "" {
					execute(t, url, st.text)
				}
			case "yaml":
				checked(t, page, st.text)
			case "mermaid":
				if !regexp.MustCompile(`^(flowchart|sequenceDiagram|stateDiagram-v2|erDiagram)\b`).MatchString(st.text) {
					t.Errorf("%s: not a diagram:\n%s", page, st.text)
				}
			case "python", "js", "prisma", "java", "ruby", "csharp":
				if !slices.Contains(run[page], st.language) {
					t.Errorf("%s, %q: nothing reads this:\n%s", page, st.heading, st.text)
				}
			case "json":
				// Of TestTemplatesPage, TestFiltersPage, TestCapturePage, and TestResultsOfPage of handlers/webhook.
				if !slices.Contains([]string{"docs/templates.md", "docs/filters.md", "docs/capture.md", "docs/destinations/webhook.md"}, page) {
					t.Errorf("%s, %q: nothing reads this:\n%s", page, st.heading, st.text)
				}
			case "text": // what is shown behind a command, or a drawing
			default:
				t.Errorf("%s: nothing checks a block of %q", page, st.language)
			}
		}
	}
	if ran["sql"] < 20 || ran["yaml"] < 25 || ran["sh"] < 90 || ran["inline"] < 50 || ran["go"] < 15 || ran["mermaid"] < 8 {
		t.Errorf("found: %v", ran)
	}
}

// anchors are the headings of a page, as GitHub names them.
func anchors(page string) (list []string) {
	page = regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(page, "")
	for _, m := range regexp.MustCompile(`(?m)^#+ +(.*)$`).FindAllStringSubmatch(page, -1) {
		name := strings.ToLower(strings.TrimSpace(m[1]))
		name = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(name, "")
		list = append(list, strings.ReplaceAll(name, " ", "-"))
	}
	return list
}

// TestDocsLinks: each relative link of the pages leads to a file that is there,
// and to a heading in it.
func TestDocsLinks(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, page := range docPages(t) {
		text := regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(testenv.ReadFile(t, page), "")
		for _, link := range regexp.MustCompile(`\]\(([^)\s:#]*)(?:#([^)\s]*))?\)`).FindAllStringSubmatch(text, -1) {
			target := page
			if link[1] != "" {
				target = filepath.Join(filepath.Dir(page), link[1])
			}
			checked++
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %v", page, err)
			} else if link[2] != "" && filepath.Ext(target) == ".md" && !slices.Contains(anchors(testenv.ReadFile(t, target)), link[2]) {
				t.Errorf("%s: %s has no heading #%s", page, target, link[2])
			}
		}
	}
	if checked < 40 {
		t.Errorf("%d links were found", checked)
	}
}

// certificate returns one that can be read, in place of an authority's that is not on this machine.
func certificate() string {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}
