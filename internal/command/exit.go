package command

import (
	"errors"
	"fmt"
)

// The exit codes. A service manager should not restart a daemon that ended
// with exitConfig: the same file would end it again.
const (
	ExitOK      = 0
	ExitFailure = 1
	ExitUsage   = 2
	ExitChanges = 3  // of "plan --exit-code"
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
