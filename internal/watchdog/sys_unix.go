//go:build unix

package watchdog

import "syscall"

// OwnGroup gives a child its own process group, so that Ctrl-C reaches this
// process alone, which then ends the child in its own time.
func OwnGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
