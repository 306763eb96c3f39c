package handlertest_test

import (
	"os"
	"strings"
	"testing"
)

func TestWarehouse(t *testing.T) {
	t.Parallel()
	testWarehouse(t)
}

// TestDocsAreTheExample wants every block of Go in the guide to be a part of the
// example, which is compiled and run.
func TestDocsAreTheExample(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../docs/custom-destination.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	// In a package of its own the test has its usual name.
	code := strings.ReplaceAll(string(example), "func testWarehouse(", "func TestWarehouse(")
	blocks := strings.Split(string(guide), "```go\n")[1:]
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		if !strings.Contains(code, block) {
			t.Errorf("this is not in example_test.go:\n%s", block)
		}
	}
	if len(blocks) < 3 {
		t.Errorf("%d blocks of Go in the guide", len(blocks))
	}
}
