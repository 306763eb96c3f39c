//go:build unix

package credential

import (
	"os/exec"
	"syscall"
)

// inGroup makes the program the head of a process group, which is killed as a whole.
func inGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
