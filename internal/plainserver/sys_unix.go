//go:build unix

package plainserver

import "syscall"

const (
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
)

// ownGroup gives a child its own process group, so that Ctrl-C reaches this
// process alone, which then ends the child in its own time.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
