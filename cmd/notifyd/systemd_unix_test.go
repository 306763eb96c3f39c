//go:build unix

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestUnitRestarts compares the exit codes of the program with the unit: a mistake that stays wrong prevents a restart,
// and no other end of the process does, the end of a crash included.
func TestUnitRestarts(t *testing.T) {
	t.Parallel()
	url := database(t)
	path := file(t, fmt.Sprintf("version: 1\ndatabase: {url: '%s'}\ndestinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\n", url))
	bare := file(t, strings.Replace(testenv.ReadFile(t, path), "{url:", "{schema: nowhere, url:", 1))
	_, rest, isThere := strings.Cut(testenv.ReadFile(t, deployDir+"/systemd/notifyd.service"), "\nRestartPreventExitStatus=")
	if !isThere {
		t.Fatal("the unit prevents no restart")
	}
	line, _, _ := strings.Cut(rest, "\n")
	prevented := strings.Fields(line)
	for what, c := range map[string]struct {
		code   int
		stable bool
	}{
		"wrong command line":  {invoke(t, "run", "--never").code, true},
		"wrong configuration": {invoke(t, "run", "-c", file(t, "version: 1\nmore: 1\n")).code, true},
		"no tables":           {invoke(t, "run", "-c", bare).code, false},
		"SIGQUIT":             {ended(t, path, syscall.SIGQUIT), false},
		"SIGABRT":             {ended(t, path, syscall.SIGABRT), false},
	} {
		if c.code == 0 {
			t.Errorf("%s: exit code 0", what)
		}
		if got := slices.Contains(prevented, strconv.Itoa(c.code)); got != c.stable {
			t.Errorf("%s: exit code %d; the unit prevents a restart: %v, want %v (%s)", what, c.code, got, c.stable, line)
		}
	}
	codes := []string{strconv.Itoa(command.ExitUsage), strconv.Itoa(command.ExitConfig)}
	if !slices.Equal(prevented, codes) {
		t.Errorf("the unit prevents a restart after %q, want %q", prevented, codes)
	}
}

// ended starts a daemon, sends it a signal by which Go ends the process with all stacks, as after a panic, and returns the exit code.
func ended(t *testing.T, path string, by syscall.Signal) int {
	t.Helper()
	p := startProcess(t, "", "run", "-c", path)
	p.stderr.await(t, "relay started")
	p.signal(t, by)
	return p.wait(t)
}
