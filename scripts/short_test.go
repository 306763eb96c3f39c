package scripts

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestShortRun reads from make how its targets call go test. Only "make test" has -short, and what CI
// calls has the race detector.
func TestShortRun(t *testing.T) {
	t.Parallel()
	for _, call := range testCalls(t, "test") {
		if strings.Contains(call, " -race ") {
			t.Errorf("make test: %s", call)
		}
	}
	if calls := testCalls(t, "test"); !strings.Contains(calls[0], " -short ") {
		t.Errorf("make test: %s", calls[0])
	}
	for _, call := range testCalls(t, "test-all") {
		if strings.Contains(call, " -short ") || !strings.Contains(call, " -race ") {
			t.Errorf("make test-all: %s", call)
		}
	}

	ci, err := os.ReadFile("../.ci/run")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(ci), "\nstep make test-all\n") {
		t.Error(".ci/run does not call make test-all")
	}
}

// testCalls returns the calls of scripts/test and scripts/test-rest that a target would make.
func testCalls(t *testing.T, target string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "make", "-n", "-C", "..", target)
	// As if this test were not started by make.
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "RACE=-race", "TESTFLAGS=", "PKG=./...")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("make %s: %v\n%s", target, err, out)
	}
	calls := regexp.MustCompile(`(?m)^.*scripts/test(-rest)? .*$`).FindAllString(string(out), -1)
	if len(calls) < 2 {
		t.Fatalf("make %s tests nothing:\n%s", target, out)
	}
	return calls
}

// TestPromisesAreNotLong: a short run has the tests that docs/guarantees.md names. It may leave out cases of them.
func TestPromisesAreNotLong(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	promises := make(map[string]bool)
	for _, m := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(page), -1) {
		promises[m[1]] = true
	}

	found := 0
	eachTest(t, func(path string, test *ast.FuncDecl) {
		if !promises[test.Name.Name] {
			return
		}
		found++
		if isLong(test) {
			t.Errorf("%s: docs/guarantees.md names %s: a short run must not skip it", path, test.Name.Name)
		}
	})
	if len(promises) < 20 || found < len(promises) {
		t.Errorf("%d of the %d tests that docs/guarantees.md names", found, len(promises))
	}
}

// isLong reports whether a statement of the test itself, and not of one of its cases, calls testenv.Long.
func isLong(test *ast.FuncDecl) bool {
	for _, statement := range test.Body.List {
		expression, ok := statement.(*ast.ExprStmt)
		if !ok {
			continue
		}
		call, ok := expression.X.(*ast.CallExpr)
		if !ok {
			continue
		}
		if callee, ok := call.Fun.(*ast.SelectorExpr); ok && callee.Sel.Name == "Long" {
			return true
		}
	}
	return false
}

// eachTest calls visit with each test of the repository.
func eachTest(t *testing.T, visit func(path string, test *ast.FuncDecl)) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".cache" || d.Name() == ".git"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, declaration := range file.Decls {
			if test, ok := declaration.(*ast.FuncDecl); ok && strings.HasPrefix(test.Name.Name, "Test") {
				visit(path, test)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
