//go:build !unix

package privateserver

import (
	"errors"
	"syscall"
)

// A private server needs Unix signals and accounts. Elsewhere this package only
// compiles: Start fails at the watchdog, and the cure is a server of one's own.

const (
	sigStop = syscall.Signal(19)
	sigCont = syscall.Signal(18)
)

// ProcAttr gives a child its own process group and the account.
func (Account) ProcAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// CanEnter reports what keeps the account from reaching path.
func (Account) CanEnter(string) error { return nil }

// Trusted reports whether path belongs to us or to root.
func Trusted(string) bool { return false }

func signalPID(int, syscall.Signal) error { return errors.ErrUnsupported }
