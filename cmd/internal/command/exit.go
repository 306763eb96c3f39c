package command

import (
	"errors"
	"fmt"
)

// The exit codes. A service manager should not restart a daemon that ended
// with ExitUsage or ExitConfig: the same mistake would end it again.
//
// No code is 2: the runtime of Go ends with it after a panic, and after the
// SIGABRT of a watchdog or SIGQUIT. A service manager must restart these.
const (
	ExitOK      = 0
	ExitFailure = 1
	ExitChanges = 3  // of "plan --exit-code"
	ExitUsage   = 64 // EX_USAGE of sysexits.h
	ExitConfig  = 78 // EX_CONFIG of sysexits.h
)

// UsageError is a mistake in the command line that only the command itself
// could find.
type UsageError struct{ error }

// Unwrap returns the error without the mark.
func (e *UsageError) Unwrap() error { return e.error }

// UsageErrorf returns a mistake in the command line.
func UsageErrorf(format string, args ...any) error {
	return &UsageError{fmt.Errorf(format, args...)}
}

// ErrChanges ends "plan --exit-code" where there are changes. It is not a failure.
var ErrChanges = errors.New("there are changes")
