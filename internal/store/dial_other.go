//go:build !linux

package store

import (
	"syscall"
	"time"
)

// setUserTimeout does nothing where there is no TCP_USER_TIMEOUT: keepalive
// probes find idle connections, and the timeouts of statements the others.
func setUserTimeout(syscall.RawConn, time.Duration) error { return nil }
