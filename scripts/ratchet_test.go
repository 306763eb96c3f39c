package scripts

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// ratchet fails the test if a key has more places than the file has for it, or fewer: a count that has fallen is written down
// with the flag.
func ratchet(t *testing.T, file string, places map[string][]string, update bool, flag, what, cure string) {
	t.Helper()
	keys := slices.Sorted(maps.Keys(places))
	if update {
		var out bytes.Buffer
		fmt.Fprintf(&out, "# What %s counts. A count may fall, and never rise.\n", t.Name())
		for _, key := range keys {
			fmt.Fprintf(&out, "%d %s\n", len(places[key]), key)
		}
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	allowed := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		count, key, _ := strings.Cut(strings.TrimSpace(line), " ")
		n := 0
		if _, err := fmt.Sscan(count, &n); err != nil {
			t.Fatalf("%s: %q: %v", file, line, err)
		}
		allowed[key] = n
	}

	for _, key := range keys {
		if n := len(places[key]); n > allowed[key] {
			t.Errorf("%s: %d %s, %d are allowed: %s\n\t%s", key, n, what, allowed[key], cure, strings.Join(places[key], "\n\t"))
		}
	}
	for key, n := range allowed {
		if len(places[key]) < n {
			t.Errorf("%s: %d are left of %d: run this test with %s", key, len(places[key]), n, flag)
		}
	}
}
