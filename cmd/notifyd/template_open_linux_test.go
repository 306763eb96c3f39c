package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestTemplateOpenInTerminal: in a terminal the desktop opens the file; without a desktop its path is enough.
func TestTemplateOpenInTerminal(t *testing.T) {
	t.Parallel()
	config, event := exampleMail(t)
	for name, opens := range map[string]bool{"desktop": true, "none": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bin := t.TempDir()
			opened := filepath.Join(bin, "opened")
			if opens {
				testenv.WriteFile(t, filepath.Join(bin, "xdg-open"), "#!/bin/sh\necho \"$@\" >"+opened+"\n")
				if err := os.Chmod(filepath.Join(bin, "xdg-open"), 0o700); err != nil {
					t.Fatal(err)
				}
			}

			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			outside, inside := pseudoTerminal(t)
			var stderr strings.Builder
			cmd := exec.CommandContext(t.Context(), self, "template", "test", "--open", "-c", config, "--destination", "placed", "--event", event)
			cmd.Env = append(os.Environ(), envSelf+"=1", "DATABASE_URL=postgres://nowhere.invalid/x", "PATH="+bin, "TMPDIR="+bin)
			cmd.Stdout = inside
			cmd.Stderr = &stderr
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v: %s", err, &stderr)
			}

			line := make([]byte, 4096)
			n, err := outside.Read(line)
			path := strings.TrimSpace(string(line[:n]))
			if err != nil || filepath.Dir(path) != bin || !strings.HasSuffix(path, ".html") {
				t.Fatalf("%q, %v", path, err)
			}
			switch {
			case opens && strings.TrimSpace(testenv.ReadFile(t, opened)) != path:
				t.Errorf("opened %q, want %q", testenv.ReadFile(t, opened), path)
			case !opens && !strings.Contains(stderr.String(), "the file was not opened: exec: \"xdg-open\": executable file not found in $PATH: open it in a browser"):
				t.Errorf("stderr is %q", stderr.String())
			}
		})
	}
}
