package freeport

import (
	"fmt"
	"strconv"
	"syscall"
)

// hold keeps port for this process until it ends, and reports whether it could: a
// process that holds it may have its server down for a moment. What is held is a
// name without a file, which the kernel frees with the process: the address of a
// Unix socket (unix(7), "abstract"). It is never closed, and children do not get it.
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
