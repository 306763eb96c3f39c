package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestReleaseNotes runs the script beside a changelog of its own.
func TestReleaseNotes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script, err := os.ReadFile("release-notes")
	if err != nil {
		t.Fatal(err)
	}
	changelog := "# Changelog\n\n## [Unreleased]\n\n- new\n\n## [1.2.0] - 2026-01-02\n\n### Added\n\n- a thing\n\n## [1.2.0-rc.1] - 2026-01-01\n\n- a try\n\n## [0.1.0]\n"
	for path, text := range map[string]string{"scripts/release-notes": string(script), "CHANGELOG.md": changelog} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		tag, says string
		code      int
	}{
		{"v1.2.0", "\n### Added\n\n- a thing\n", 0},
		{"v1.2.0-rc.1", "\n- a try\n", 0},
		{"v0.1.0", "release-notes: CHANGELOG.md has no section \"## [0.1.0]\" with text\n", 1},
		{"v1.2", "usage: scripts/release-notes v1.2.3\n", 2},
		{"main", "usage: scripts/release-notes v1.2.3\n", 2},
	} {
		// By bash, for the reason that TestSetupWithoutAnything gives.
		cmd := exec.CommandContext(t.Context(), "bash", filepath.Join(dir, "scripts/release-notes"), c.tag)
		out, _ := cmd.CombinedOutput()
		if string(out) != c.says || cmd.ProcessState.ExitCode() != c.code {
			t.Errorf("%s: %q, exit code %d; want %q, %d", c.tag, out, cmd.ProcessState.ExitCode(), c.says, c.code)
		}
	}
}
