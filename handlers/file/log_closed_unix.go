//go:build unix

package file

import (
	"os"

	"golang.org/x/sys/unix"
)

// isClosed reports whether a file was closed when the process began. The runtime of Go then opens
// the null device in its place, for reading as well, which a shell's redirection to that device does
// not do.
func isClosed(f *os.File) bool {
	info, err := f.Stat()
	if err != nil {
		return false
	}

	null, err := os.Stat(os.DevNull)
	if err != nil || !os.SameFile(info, null) {
		return false
	}

	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}

	mode := unix.O_WRONLY
	err = raw.Control(func(fd uintptr) {
		if flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0); err == nil {
			mode = flags & unix.O_ACCMODE
		}
	})

	return err == nil && mode == unix.O_RDWR
}
