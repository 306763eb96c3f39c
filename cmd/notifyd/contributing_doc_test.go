package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestContributingPage holds the commands of CONTRIBUTING.md against what they are
// about: targets and variables of the Makefile, packages and the tests in them, flags,
// scripts, modules. To run them would be to run all tests from within one.
func TestContributingPage(t *testing.T) {
	t.Parallel()
	page := testenv.ReadFile(t, root+"CONTRIBUTING.md")
	seen := make(map[string]int)
	for _, st := range steps(page) {
		if st.language != "sh" {
			continue
		}
		line := st.line()
		args := shellWords(t, line)
		for len(args) > 0 && regexp.MustCompile(`^NOTIFYD_\w+=`).MatchString(args[0]) {
			args = args[1:] // TestContributingNames has looked for it
		}
		command := args[0]
		if command == "go" {
			command += " " + args[1]
		}
		seen[command]++
		switch command {
		case "make":
			makeKnows(t, args[1:])
		case "go test":
			goTestFinds(t, args[2:])
		case "go generate":
			found, err := filepath.Glob(root + args[2] + "/*.go")
			if err != nil || !slices.ContainsFunc(found, func(path string) bool { return strings.Contains(testenv.ReadFile(t, path), "\n//go:generate ") }) {
				t.Errorf("%s: generates nothing, %v", line, err)
			}
		case "go get":
			module, _, _ := strings.Cut(args[2], "@")
			if !strings.Contains(testenv.ReadFile(t, root+"go.mod"), "\t"+module+" v") {
				t.Errorf("%s: go.mod has no such module", line)
			}
		case "./scripts/release-notes": // of TestReleaseNotes in scripts
			isThere(t, args[0])
		case "go mod", "git":
		default:
			t.Errorf("nothing looks at %s", line)
		}
	}
	if seen["make"] < 10 || seen["go test"] < 7 {
		t.Errorf("found %v", seen)
	}
}

// shellWords splits a command as a shell does.
func shellWords(t *testing.T, line string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "bash", "-f", "-c", `eval "set -- $1"; printf '%s\0' "$@"`, "bash", line).Output()
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

// makeKnows looks for targets and variables in the Makefile, and for the tests that a
// variable names.
func makeKnows(t *testing.T, args []string) {
	t.Helper()
	makefile := testenv.ReadFile(t, root+"Makefile")
	vars := make(map[string]string)
	for _, arg := range args {
		if name, value, isVar := strings.Cut(arg, "="); isVar {
			vars[name] = value
			if !regexp.MustCompile(`(?m)^` + name + ` \?=`).MatchString(makefile) {
				t.Errorf("make %q: the Makefile has no variable %s", args, name)
			}
		}
	}
	if out, err := exec.CommandContext(t.Context(), "make", append([]string{"-n", "-C", root}, args...)...).CombinedOutput(); err != nil {
		t.Errorf("make %q: %v\n%s", args, err, out)
	}
	if vars["PKG"] != "" {
		goTestFinds(t, append(strings.Fields(vars["TESTFLAGS"]), vars["PKG"]))
	}
	if slices.Contains(args, "dist") {
		for _, flag := range regexp.MustCompile(`-([a-z-]+) `).FindAllStringSubmatch(vars["ARGS"], -1) {
			if !strings.Contains(testenv.ReadFile(t, root+"internal/dist/cmd/dist/main.go"), `("`+flag[1]+`"`) {
				t.Errorf("make %q: dist has no flag -%s", args, flag[1])
			}
		}
	}
}

// goTestFinds looks for the package, the tests and the flags of a call of go test.
func goTestFinds(t *testing.T, args []string) {
	t.Helper()
	var pattern string
	var flags []string
	var files string
	for i, arg := range args {
		switch {
		case arg == "-run":
			pattern = args[i+1]
		case strings.HasPrefix(arg, "./"):
			files = testFiles(t, arg)
		case strings.HasPrefix(arg, "-"):
			flags = append(flags, arg)
		}
	}
	if files == "" {
		t.Errorf("go test %q: no tests", args)
	}
	for one := range strings.SplitSeq(pattern, "|") {
		if !regexp.MustCompile(`(?m)^func (?:Test` + strings.TrimPrefix(strings.Trim(one, "^$"), "Test") + `|Test\w*` + strings.Trim(one, "^$") + `)`).MatchString(files) {
			t.Errorf("go test %q: there is no test %s", args, one)
		}
	}
	needs := map[string]string{
		"-race": "", "-v": "", "-timeout": "", "-rapid.checks=5000": `(?m)^\t"pgregory\.net/rapid"$`,
		"-update": `(?m)^var \w+ = flag\.Bool\("update"`, // and not this line
	}
	for _, flag := range flags {
		if text, known := needs[flag]; !known || !regexp.MustCompile(text).MatchString(files) {
			t.Errorf("go test %q: there is no flag %s", args, flag)
		}
	}
}

// testFiles are the tests of a package, or of all below it, in one text.
func testFiles(t *testing.T, pattern string) (text string) {
	t.Helper()
	dir, all := strings.CutSuffix(pattern, "/...")
	globs := []string{"/*_test.go"}
	if all {
		globs = append(globs, "/*/*_test.go")
	}
	for _, glob := range globs {
		found, err := filepath.Glob(root + dir + glob)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			text += testenv.ReadFile(t, path)
		}
	}
	return text
}

func isThere(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, path)); err != nil {
		t.Errorf("CONTRIBUTING.md: %v", err)
	}
}

// TestContributingNames: the files, directories and variables that the page names are
// there.
func TestContributingNames(t *testing.T) {
	t.Parallel()
	page := regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(testenv.ReadFile(t, root+"CONTRIBUTING.md"), "")
	paths := 0
	for _, m := range regexp.MustCompile("`([\\w.-]*(?:/[\\w.-]*)+|[\\w.-]+\\.(?:go|md|ya?ml))`").FindAllStringSubmatch(page, -1) {
		switch path := m[1]; path {
		case ".cache/", "dist/": // what is built
		case "testing/synctest", "github.com/jackc/pgxlisten", "/tmp/events.json": // what is imported or written
		default:
			paths++
			isThere(t, strings.Replace(path, "TYPE", "email", 1))
		}
	}
	if paths < 25 {
		t.Errorf("found %d paths", paths)
	}
	code := testenv.ReadFile(t, root+"scripts/test") + testenv.ReadFile(t, root+"internal/lab/testenv/testenv.go") + testFiles(t, "./integration/...") + testFiles(t, "./internal/...")
	for _, name := range regexp.MustCompile(`NOTIFYD_\w+`).FindAllString(testenv.ReadFile(t, root+"CONTRIBUTING.md"), -1) {
		if !strings.Contains(code, name) {
			t.Errorf("nothing reads %s", name)
		}
	}
}
