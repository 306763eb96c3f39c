//go:build !unix

package pgserver

import (
	"errors"
	"syscall"
)

// A private server needs Unix signals and accounts. Elsewhere this package only
// compiles: Start fails at the watchdog, and the cure is a server of one's own.

const (
	sigKill = syscall.SIGKILL
	sigStop = syscall.Signal(19)
	sigCont = syscall.Signal(18)
)

func (account) procAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

func (account) canEnter(string) error { return nil }

func trusted(string) bool { return false }

func signalPID(int, syscall.Signal) error { return errors.ErrUnsupported }
