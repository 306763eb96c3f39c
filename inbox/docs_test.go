package inbox_test

import (
	"os"
	"strings"
	"testing"
)

// TestDocsAreExamples requires every block of Go in the guide to be part of code
// that is compiled and run.
func TestDocsAreExamples(t *testing.T) {
	t.Parallel()
	read := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	code := read("example_test.go") + read("idempotency/example_test.go") + read("../examples/orders/shop.go")
	blocks := strings.Split(read("../docs/consumers.md"), "```go\n")[1:]
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		if !strings.Contains(code, block) {
			t.Errorf("no example contains:\n%s", block)
		}
	}
	if len(blocks) != 7 {
		t.Errorf("%d blocks of Go in the guide", len(blocks))
	}
}
