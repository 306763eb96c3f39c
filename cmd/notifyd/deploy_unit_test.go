//go:build testall

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestDeployUnit has systemd read the unit, with a program that is here.
func TestDeployUnit(t *testing.T) {
	t.Parallel()
	analyze := testenv.Program(t, "systemd-analyze")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text := testenv.ReadFile(t, deployDir+"/systemd/notifyd.service")
	unit := filepath.Join(t.TempDir(), "notifyd.service")
	for _, want := range []string{"Type=notify\n", "WatchdogSec=", "ExecStart=/usr/local/bin/notifyd run "} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("the unit lacks %q", want)
		}
	}
	if err := os.WriteFile(unit, []byte(strings.ReplaceAll(text, "/usr/local/bin/notifyd", self)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"verify", "--man=no", "--recursive-errors=no", unit},
		{"security", "--offline=true", "--threshold=" + maxExposure, "--no-pager", unit},
	} {
		out, err := exec.CommandContext(t.Context(), analyze, args...).CombinedOutput()
		if err != nil || args[0] == "verify" && len(out) > 0 {
			t.Errorf("systemd-analyze %s: %v\n%s", args[0], err, out)
		}
	}

	// The drop-in is for newer versions of systemd than some that are in use: these ignore its keys, and no others.
	dropIn := unit + ".d"
	if err := os.Mkdir(dropIn, 0o700); err != nil {
		t.Fatal(err)
	}
	pauses := testenv.ReadFile(t, deployDir+"/systemd/notifyd-restart.conf")
	if err := os.WriteFile(filepath.Join(dropIn, "restart.conf"), []byte(pauses), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _ := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", "--recursive-errors=no", unit).CombinedOutput() // an ignored key is a failure, too
	version, err := exec.CommandContext(t.Context(), analyze, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	var number int
	if _, err := fmt.Sscanf(string(version), "systemd %d", &number); err != nil {
		t.Fatal(err)
	}
	left := regexp.MustCompile(`(?m)^.*Unknown key .*'(?:RestartSteps|RestartMaxDelaySec)'.*, ignoring\.\n`).ReplaceAllString(string(out), "")
	if hasKeys := number >= 254; left != "" || (len(out) == 0) != hasKeys {
		t.Errorf("systemd %d says:\n%s", number, out)
	}
}
