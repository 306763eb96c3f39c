package scripts

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// gotestsum returns the program that prints the results of tests, which make builds.
func gotestsum(t *testing.T) string {
	t.Helper()
	path := os.Getenv("GOTESTSUM")
	if path == "" {
		found, err := filepath.Glob("../.cache/bin/gotestsum-*")
		if err != nil || len(found) == 0 {
			testenv.Need(t, "gotestsum", errors.New("make test builds it"))
		}
		path = found[len(found)-1]
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestFailuresAreFinal runs packages of a throw-away module, one of which fails at the first time
// only: scripts/test fails and does not run the package again.
func TestFailuresAreFinal(t *testing.T) {
	t.Parallel()
	dir, script := t.TempDir(), "test"
	for name, text := range map[string]string{
		"go.mod":      "module x\n\ngo 1.26\n",
		"a/a_test.go": "package a\n\nimport \"testing\"\n\nfunc Test(t *testing.T) {}\n",
		"b/b_test.go": `package b

import ("os"; "testing")

func Test(t *testing.T) {
	f, err := os.OpenFile("runs", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n, _ := f.WriteString("x"); n == 1 {
		t.Error("only the first time")
	}
}
`,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	script, err := filepath.Abs(script)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "bash", script, "-count=1", "--", "./...")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOTESTSUM="+gotestsum(t), "GOFLAGS=", "TEST_JSON=")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("%v, want exit code 1", err)
	}
	runs, err := os.ReadFile(filepath.Join(dir, "b", "runs"))
	if err != nil || string(runs) != "x" {
		t.Errorf("the package ran %d times, %v", len(runs), err)
	}
	for _, line := range []string{"a", "b", "only the first time", "2 tests, 1 failure"} {
		if !strings.Contains(string(out), line) {
			t.Errorf("%q is missing", line)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}

// TestEveryTaggedTestRuns compares the tests that scripts/test-rest would run with the tests that
// only builds with the tag have.
func TestEveryTaggedTestRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "bash", "test-rest")
	cmd.Env = append(os.Environ(), "GOTESTSUM="+filepath.Join(dir, "run"))
	if err := os.Symlink("/bin/echo", filepath.Join(dir, "run")); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	args := strings.Fields(string(out))
	var pattern *regexp.Regexp
	packages := map[string]bool{}
	for i, a := range args {
		if a == "-run" {
			pattern = regexp.MustCompile(args[i+1])
		}
		packages[a] = true
	}
	if pattern == nil {
		t.Fatalf("no -run: %s", out)
	}
	tagged := regexp.MustCompile(`(?m)^//go:build .*\btestall\b`)
	tests := regexp.MustCompile(`(?m)^func ((?:Test|Example|Fuzz)\w*)\(`)
	found := 0
	err = filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".cache" || d.Name() == ".git"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || !tagged.Match(text) {
			return err
		}
		pkg := "./" + strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "../")
		for _, m := range tests.FindAllSubmatch(text, -1) {
			if name := string(m[1]); name != "TestMain" {
				found++
				if !pattern.MatchString(name) || !packages[pkg] {
					return fmt.Errorf("scripts/test-rest leaves out %s of %s", name, pkg)
				}
			}
		}
		return nil
	})
	if err != nil || found < 50 {
		t.Errorf("%d tests, %v", found, err)
	}
}
