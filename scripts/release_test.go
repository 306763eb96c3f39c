package scripts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// TestReleaseIsSigned: the workflow compares the sums, signs their file and states its provenance before anything is
// published, and publishes the results, by which docs/deploy.md verifies a release.
func TestReleaseIsSigned(t *testing.T) {
	t.Parallel()
	jobs := workflows(t)[".github/workflows/release.yml"].Jobs
	var sign []string
	for _, step := range jobs["sign"].Steps {
		sign = append(sign, fmt.Sprintln(step.Uses, step.With, step.Run))
	}
	last := -1
	for _, want := range []string{
		"sha256sum --strict -c SHA256SUMS", "subject-checksums:dist/SHA256SUMS", "sigstore/cosign-installer@", "cosign sign-blob --yes --bundle SHA256SUMS.sigstore.json SHA256SUMS\n",
		"cosign verify-blob --bundle SHA256SUMS.sigstore.json ", "path:dist/*.sigstore.json",
	} {
		at := -1
		for i, text := range sign {
			if strings.Contains(text, want) {
				at = i
			}
		}
		if at < last || at < 0 {
			t.Errorf("the job has %q at step %d, after step %d", want, at, last)
		}
		last = at
	}
	if got := fmt.Sprintf("%v %v", jobs["sign"].Needs, jobs["publish"].Needs); got != "build [build sign]" {
		t.Errorf("sign and publish wait for %s", got)
	}
	steps := jobs["publish"].Steps
	published := steps[len(steps)-1].Run
	for _, file := range []string{"SHA256SUMS ", "./*.tar.gz", "./*.cdx.json", "./*.sigstore.json"} {
		if !strings.Contains(published, file) {
			t.Errorf("%s is not published by %s", file, published)
		}
	}
	page, err := os.ReadFile("../docs/deploy.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"\ncosign verify-blob --bundle SHA256SUMS.sigstore.json --certificate-oidc-issuer https://token.actions.githubusercontent.com ", "/.github/workflows/release.yml@refs/tags/v", "\ngh attestation verify "} {
		if !strings.Contains(string(page), command) {
			t.Errorf("docs/deploy.md does not show %q", command)
		}
	}
}
