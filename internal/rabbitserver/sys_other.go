//go:build !unix

package rabbitserver

import (
	"errors"
	"syscall"
)

// A private node needs Unix signals and accounts. Elsewhere this package only
// compiles: nothing is found.

const (
	sigTerm = syscall.SIGTERM
	sigKill = syscall.SIGKILL
	sigStop = syscall.Signal(19)
	sigCont = syscall.Signal(18)
)

func (account) procAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

func signalPID(int, syscall.Signal) error { return errors.ErrUnsupported }
