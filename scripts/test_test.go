// Package scripts holds the tests of the scripts beside it.
package scripts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Tests of the packages of a throw-away module.
const (
	passes = `func Test(t *testing.T) {}`
	fails  = `func Test(t *testing.T) { t.Error("it always fails") }`
	once   = `func Test(t *testing.T) {
		if _, err := os.Stat("been-here"); err == nil {
			return
		}
		if err := os.WriteFile("been-here", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Error("only the first time")
	}`
	races = `func Test(t *testing.T) {
		n, done := 0, make(chan bool)
		go func() { n++; close(done) }()
		n++
		<-done
		t.Log(n)
	}`
	hangs    = `func Test(t *testing.T) { <-make(chan bool) }`
	dies     = `func Test(t *testing.T) { os.Stdout.WriteString("half a line"); os.Exit(1) }`
	pretends = `func Test(t *testing.T) { os.Stdout.WriteString("FAIL\tx/nothing\t1.0s\n") }`
	nonsense = `func Test(t *testing.T) { undefined() }`
)

// again is in the message about each package that is run once more.
const again = "once more, alone"

// testRun is a run of scripts/test with the expected result.
type testRun struct {
	name     string
	packages map[string]string // their tests, by name
	flags    []string
	env      string
	code     int
	says     []string
	not      []string
}

func TestRunsFailedPackagesAgain(t *testing.T) {
	t.Parallel()
	each(t, []testRun{
		{
			name:     "nothing to do",
			packages: map[string]string{"a": passes, "b": passes},
			says:     []string{"ok  \tx/a", "ok  \tx/b"}, not: []string{again, "FLAKY"},
		},
		{
			name:     "passes alone",
			packages: map[string]string{"a": passes, "b": once, "c": once, "d": once, "e": once},
			says: []string{
				"only the first time", "FAIL\tx/b", "test: x/b failed (see above); " + again, "ok  \tx/b",
				"\nFLAKY: x/b (see above)", "\nFLAKY: x/c (see above)", "\nFLAKY: x/d (see above)", "\nFLAKY: x/e (see above)",
			},
			not: []string{"x/a failed", "FLAKY: x/a"},
		},
		{
			name:     "fails again",
			packages: map[string]string{"a": once, "b": fails},
			code:     1,
			says:     []string{"\nFLAKY: x/a (see above)", "x/b failed (see above)", "failed: 1 of 2 packages failed again"},
			not:      []string{"FLAKY: x/b"},
		},
		{
			name:     "without a last line",
			packages: map[string]string{"a": dies, "b": once},
			code:     1,
			says:     []string{"x/a failed (see above)", "FLAKY: x/b", "failed: 1 of 2"},
		},
		{
			name:     "words of a test that passes",
			packages: map[string]string{"a": pretends, "b": once},
			flags:    []string{"-v"},
			code:     1, // a pass may be taken for a failure, never a failure for a pass
			says:     []string{"FLAKY: x/b"},
		},
		{
			name:     "hangs twice",
			packages: map[string]string{"a": hangs},
			flags:    []string{"-timeout=100ms"},
			code:     1,
			says:     []string{"test timed out after 100ms", again, "failed: 1 of 1"}, not: []string{"FLAKY"},
		},
	})
}

func TestFirstFailureIsFinal(t *testing.T) {
	t.Parallel()
	each(t, []testRun{
		{
			name:     "strict",
			packages: map[string]string{"a": passes, "b": once},
			env:      "NOTIFYD_TEST_STRICT=1",
			code:     1,
			says:     []string{"only the first time", "nothing is run again"}, not: []string{again, "FLAKY"},
		},
		{
			name:     "too many",
			packages: map[string]string{"a": once, "b": once, "c": once, "d": once, "e": once},
			code:     1,
			says:     []string{"failed: 5 packages"}, not: []string{again, "FLAKY"},
		},
		{
			name:     "does not build",
			packages: map[string]string{"a": nonsense, "b": once},
			code:     1,
			says:     []string{"x/a [build failed]", "undefined: undefined", "could be built"}, not: []string{again, "FLAKY"},
		},
		{
			name:     "data race",
			packages: map[string]string{"a": races},
			flags:    []string{"-race"},
			code:     1,
			says:     []string{"WARNING: DATA RACE", "a data race"}, not: []string{again, "FLAKY"},
		},
		{
			name:     "lost event",
			packages: map[string]string{"a": strings.Replace(once, "only the first time", "event 7 was lost at mail", 1), "b": once},
			code:     1,
			says:     []string{"only the first time", "which is never a question of time: p_test.go:17: event 7 was lost at mail"}, not: []string{again, "FLAKY"},
		},
		{
			name:     "wrong flags",
			packages: map[string]string{"a": passes},
			flags:    []string{"-timeout=soon"},
			code:     2,
			says:     []string{`invalid value "soon"`}, not: []string{again},
		},
		{
			name:     "a wrong setting",
			packages: map[string]string{"a": passes},
			env:      "NOTIFYD_TEST_STRICT=yes",
			code:     2,
			says:     []string{"NOTIFYD_TEST_STRICT is yes: set it to 1"},
		},
	})
}

func each(t *testing.T, runs []testRun) {
	t.Helper()
	for _, c := range runs {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := module(t, c.packages)
			out, code := script(t, dir, c.env, append(slices.Clone(c.flags), "-vet=off", "--", "./..."))
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, text := range c.says {
				if !strings.Contains(out, text) {
					t.Errorf("the output does not have %q", text)
				}
			}
			for _, text := range c.not {
				if strings.Contains(out, text) {
					t.Errorf("the output has %q", text)
				}
			}
			if t.Failed() {
				t.Logf("the output:\n%s", out)
			}
		})
	}
}

func TestWithoutPackages(t *testing.T) {
	t.Parallel()
	out, code := script(t, t.TempDir(), "", []string{"./..."})
	if code != 2 || !strings.Contains(out, "usage: scripts/test") {
		t.Errorf("exit code %d, and it says:\n%s", code, out)
	}
}

// TestNoSuchPackage: a missing package has not passed.
func TestNoSuchPackage(t *testing.T) {
	t.Parallel()
	out, code := script(t, module(t, map[string]string{"a": passes}), "", []string{"--", "./b"})
	if code != 1 || strings.Contains(out, "FLAKY") {
		t.Errorf("exit code %d, and it says:\n%s", code, out)
	}
}

// module writes the module x with a package per test.
func module(t *testing.T, packages map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module x\n\ngo 1.24\n")
	for name, test := range packages {
		write(name+"/p_test.go", "package p\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nvar _ = os.Exit\n\n"+test+"\n")
	}
	return dir
}

// script runs scripts/test in a directory, and returns what it printed and its
// exit code.
func script(t *testing.T, dir, env string, args []string) (string, int) {
	t.Helper()
	path, err := filepath.Abs("test")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir = dir
	// Without the settings of the run that this test is part of.
	cmd.Env = append(os.Environ(), "NOTIFYD_TEST_STRICT=", "GOFLAGS=", "GOWORK=off", env)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}
