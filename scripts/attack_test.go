package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRolesAreTested: each row of the table of roles in SECURITY.md names tests that exist, the first one with a daemon or a relay. Each
// role has a row of what it can and one of what it cannot. scripts/attack runs the tests of the table and no others.
func TestRolesAreTested(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "\n## Roles\n")
	table, _, _ = strings.Cut(table, "\n## ")
	link := regexp.MustCompile(`\[(Test\w+)\]\(([\w/]+_test\.go)\)`)
	tests, cells := make(map[string]bool), make(map[string]string)
	for line := range strings.Lines(table) {
		row := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| role |") {
			continue
		}
		if len(row) != 4 || row[1] != "can" && row[1] != "cannot" {
			t.Errorf("not a row of a role: %s", line)
			continue
		}
		cells[row[0]] += row[1] + " "
		named := link.FindAllStringSubmatch(row[3], -1)
		if len(named) == 0 || !runsRelay(named[0][2]) {
			t.Errorf("the first test of a row must be one of cmd/notifyd or integration: %s", line)
		}
		for _, n := range named {
			text, err := os.ReadFile(filepath.Join("..", n[2]))
			if err != nil || !strings.Contains(string(text), "\nfunc "+n[1]+"(t *testing.T) {") {
				t.Errorf("%s is not in %s: %v", n[1], n[2], err)
			}
			tests[filepath.Dir(n[2])+" "+n[1]] = true
		}
	}
	if len(cells) < 7 {
		t.Errorf("%d roles", len(cells))
	}
	for role, has := range cells {
		if !strings.Contains(has, "can ") || !strings.Contains(has, "cannot ") {
			t.Errorf("%s: only what it %s", role, has)
		}
	}

	out, err := exec.CommandContext(t.Context(), "bash", "attack", "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	run := 0
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		for _, name := range words[1:] {
			run++
			if !tests[words[0]+" "+name] {
				t.Errorf("scripts/attack runs %s of %s, which is not in the table", name, words[0])
			}
		}
	}
	if run != len(tests) {
		t.Errorf("scripts/attack runs %d tests, the table names %d", run, len(tests))
	}
}

// runsRelay reports whether the tests of a file run a daemon, or a relay on a real database.
func runsRelay(file string) bool {
	return filepath.Dir(file) == "cmd/notifyd" || filepath.Dir(file) == "integration"
}
