//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package file

import (
	"errors"
	"os"
	"syscall"
)

// tryLock locks a file unless another has the lock. It fails where the file system has no locks.
func tryLock(f *os.File) (bool, error) {
	err := control(f, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

func unlock(f *os.File) {
	_ = control(f, syscall.LOCK_UN) // closing the file unlocks it, too
}

func control(f *os.File, how int) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}

	var failed error
	err = raw.Control(func(fd uintptr) {
		for {
			failed = syscall.Flock(int(fd), how)
			if !errors.Is(failed, syscall.EINTR) {
				return
			}
		}
	})

	if failed != nil {
		return &os.PathError{Op: "lock", Path: f.Name(), Err: failed}
	}

	return err
}
