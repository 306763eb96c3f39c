package freeport

import (
	"fmt"
	"strconv"
	"syscall"
)

// hold reserves port for this process until the process ends, and reports whether it
// could: the server of another process that holds the port may be down for a moment. The
// reservation is an abstract Unix socket (unix(7)), which the kernel frees with the
// process. It is never closed, and children do not inherit it.
func hold(port int) (bool, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("hold the port %d: %w", port, err)
	}

	if syscall.Bind(fd, &syscall.SockaddrUnix{Name: "@notifyd-port-" + strconv.Itoa(port)}) == nil {
		return true, nil
	}

	if err := syscall.Close(fd); err != nil {
		return false, fmt.Errorf("hold the port %d: %w", port, err)
	}
	return false, nil
}
