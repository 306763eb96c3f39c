//go:build !unix

package privateserver

import (
	"errors"
	"syscall"
)

// A private server needs Unix signals and accounts. Elsewhere this package only compiles:
// Start fails at the watchdog, and tests need a server named by the environment.

const (
	sigStop = syscall.Signal(19)
	sigCont = syscall.Signal(18)
)

// ProcAttr gives a child its own process group and the account.
func (Account) ProcAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// CanEnter returns nil.
func (Account) CanEnter(string) error { return nil }

// Trusted returns false: the owner of path is unknown.
func Trusted(string) bool { return false }

func signalPID(int, syscall.Signal) error { return errors.ErrUnsupported }
