package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/config"
)

// The exit codes. A service manager should not restart a daemon that ended
// with exitConfig: the same file would end it again.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitChanges = 3  // of "plan --detailed-exitcode"
	exitConfig  = 78 // EX_CONFIG of sysexits.h
)

// usageError is a mistake in the command line that only the command itself
// could find.
type usageError struct{ error }

// Unwrap returns the error without the mark.
func (e *usageError) Unwrap() error { return e.error }

func usageErrorf(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// report prints err, which the command cmd returned, and gives the exit code.
func (a *app) report(cmd *cobra.Command, err error) int {
	if err == nil {
		return exitOK
	}
	if errors.Is(err, errChanges) {
		return exitChanges
	}
	if list, ok := errors.AsType[*config.Error](err); ok {
		cmd.PrintErrln(list)
		return exitConfig
	}
	text := strings.TrimPrefix(err.Error(), "notifyd: ") // the relay's errors have the prefix already
	if _, ok := errors.AsType[*usageError](err); ok || !a.started {
		cmd.PrintErrf("notifyd: %s\nsee %s --help\n", text, cmd.CommandPath())
		return exitUsage
	}
	cmd.PrintErrf("notifyd: %s%s\n", text, a.grantCure(cmd, err))
	if _, ok := errors.AsType[*cli.EnvironmentError](err); ok {
		return exitConfig
	}
	return exitFailure
}
