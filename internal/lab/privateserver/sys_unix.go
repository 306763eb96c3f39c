//go:build unix

package privateserver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const (
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
)

// ProcAttr makes a child run as the account, in a separate process group. Ctrl-C then reaches only this process, which
// ends the child.
func (a Account) ProcAttr() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if a.Other() {
		// Groups stays empty: the child loses root's supplementary groups too.
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return attr
}

// CanEnter returns an error unless the account can enter path and every directory above it.
func (a Account) CanEnter(path string) error {
	if !a.Other() {
		return nil
	}

	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}

	for {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if !a.mayExecute(info) {
			return fmt.Errorf("%s is closed to the account %s: %w", path, a.name, fs.ErrPermission)
		}

		parent := filepath.Dir(path)
		if parent == path {
			return nil
		}
		path = parent
	}
}

func (a Account) mayExecute(info fs.FileInfo) bool {
	mode := info.Mode().Perm()
	owner, ok := info.Sys().(*syscall.Stat_t)

	switch {
	case ok && owner.Uid == a.uid:
		return mode&0o100 != 0
	case ok && owner.Gid == a.gid:
		return mode&0o010 != 0
	default:
		return mode&0o001 != 0
	}
}

// Trusted reports whether path belongs to this account or root, so that no other account
// can have planted it.
func Trusted(path string) bool {
	info, err := os.Lstat(path)
	if err != nil {
		return false
	}

	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	isOurs := owner.Uid == 0 || int64(owner.Uid) == int64(os.Geteuid())
	return isOurs && info.Mode().Perm()&0o002 == 0
}

// signalPID sends sig to a process that need not be a child, or to the process group -pid.
// A missing process is not an error.
func signalPID(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %s to process %d: %w", sig, pid, err)
	}
	return nil
}
