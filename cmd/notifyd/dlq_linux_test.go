package main

import (
	"strings"
	"testing"
)

// TestDLQOnATerminal asks, and does it after a yes only.
func TestDLQOnATerminal(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]struct {
		code  int
		state string
	}{"y\n": {0, "1 retry, 2 retry"}, "YES\n": {0, "1 retry, 2 retry"}, "\n": {1, "1 dead, 2 dead"}, "yesterday\n": {1, "1 dead, 2 dead"}} {
		t.Run(strings.TrimSpace(answer), func(t *testing.T) {
			t.Parallel()
			url := buried(t, 2)
			person, program := pseudoTerminal(t)
			if _, err := person.WriteString(answer); err != nil {
				t.Fatal(err)
			}
			p := startProcessOn(t, program, "dlq", "replay", "--all", "--database-url", url)
			code := p.wait(t)
			if code != want.code || states(t, url) != want.state || !strings.Contains(p.stderr.text(), "2 dead letters will be replayed. Go on? [y/N] ") {
				t.Errorf("exit code %d, %s: %s%s", code, states(t, url), p.stdout.text(), p.stderr.text())
			}
		})
	}
}
