package testenv

import (
	"os"
	"os/exec"
	"testing"
)

// Program returns the path of a program that a test starts, such as "node". If it
// is not installed, the test is skipped, or fails if [EnvRequire] lists its name.
func Program(tb testing.TB, name string) string {
	tb.Helper()
	path, err := exec.LookPath(name)
	require(tb, name, err)
	return path
}

// Signal sends a signal to a process, which must be running.
func Signal(tb testing.TB, process *os.Process, s os.Signal) {
	tb.Helper()
	if err := process.Signal(s); err != nil {
		tb.Fatal(err)
	}
}
