//go:build !linux

package store

import (
	"syscall"
	"time"
)

// setUserTimeout does nothing without TCP_USER_TIMEOUT: keepalive probes detect dead idle connections, and statement
// timeouts the others.
func setUserTimeout(syscall.RawConn, time.Duration) error { return nil }
