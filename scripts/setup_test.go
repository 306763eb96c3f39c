package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestSetupWithoutAnything runs the scripts of make setup as a user without rights on a
// machine without programs: each script says which tests will be skipped, and does not fail.
func TestSetupWithoutAnything(t *testing.T) {
	t.Parallel()
	setups, err := filepath.Glob("*/setup")
	if err != nil || len(setups) < 7 {
		t.Fatalf("%q, %v", setups, err)
	}
	all, err := os.ReadFile("setup")
	if err != nil {
		t.Fatal(err)
	}
	programs := t.TempDir()
	for _, name := range []string{"bash", "dirname", "uname", "rm", "mkdir", "mv", "cp", "cmp"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(programs, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(programs, "id"), []byte("#!/usr/bin/env bash\necho 1000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, setup := range setups {
		if !strings.Contains(string(all), "\n./scripts/"+setup+"\n") {
			t.Errorf("scripts/setup does not call %s", setup)
		}
		// In a tree of its own, without the .cache of this one.
		dir := t.TempDir()
		if err := os.CopyFS(filepath.Join(dir, "scripts"), os.DirFS(".")); err != nil {
			t.Fatal(err)
		}
		// By bash: a script that was just written may still be open in a child that
		// another test is forking, and then is "text file busy".
		cmd := exec.CommandContext(t.Context(), filepath.Join(programs, "bash"), filepath.Join(dir, "scripts", setup))
		cmd.Env = []string{"PATH=" + programs}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), "setup: ") {
			t.Errorf("%s: %v\n%s", setup, err, out)
		}
		t.Logf("%s: %s", setup, out)
		if made, err := filepath.Glob(filepath.Join(dir, ".cache", "*", "*")); err != nil || len(made) > 0 {
			t.Errorf("%s has created %q, %v", setup, made, err)
		}
	}
}
