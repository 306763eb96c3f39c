//go:build !unix

package plainserver

import "syscall"

// A private server needs Unix signals. Elsewhere this package only compiles:
// Start fails at the watchdog.

const (
	sigStop = syscall.Signal(19)
	sigCont = syscall.Signal(18)
)
