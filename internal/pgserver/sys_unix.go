//go:build unix

package pgserver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const (
	sigKill = syscall.SIGKILL
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
)

// procAttr gives a child its own process group and the account.
func (a account) procAttr() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if a.other() {
		// Groups stays empty: the child loses root's supplementary groups too.
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return attr
}

// canEnter reports what keeps the account from reaching path: every directory
// on the way, and path itself, must let it pass.
func (a account) canEnter(path string) error {
	if !a.other() {
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

func (a account) mayExecute(info fs.FileInfo) bool {
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

// trusted reports whether path belongs to us or to root, so that nobody else
// can have planted it.
func trusted(path string) bool {
	info, err := os.Lstat(path)
	if err != nil {
		return false
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	return ok && (owner.Uid == 0 || int64(owner.Uid) == int64(os.Geteuid())) && info.Mode().Perm()&0o002 == 0
}

// signalPID sends sig to a process that is not our child. One that is gone is
// no error.
func signalPID(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %s to process %d: %w", sig, pid, err)
	}
	return nil
}
