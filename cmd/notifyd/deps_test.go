package main

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDaemonIsADaemon: what starts private servers, installs packages, administers
// brokers or measures is not linked into it, not by way of others either.
func TestDaemonIsADaemon(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Fields(string(out))
	if !slices.Contains(all, "github.com/notifyd/notifyd/cmd/internal/demo") {
		t.Fatalf("the demo is gone, or these are not all: %q", all)
	}
	laboratory := regexp.MustCompile(`/notifyd/(bench|internal/(\w*bench|\w*server|freeport|testenv))\b|/kadm\b|^testing$`)
	for _, name := range all {
		if laboratory.MatchString(name) {
			t.Errorf("the daemon has %s in it", name)
		}
	}
}
