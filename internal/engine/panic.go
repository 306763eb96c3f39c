package engine

import (
	"errors"

	"github.com/notifyd/notifyd/internal/safecall"
)

// ErrPanicked is matched by the error of a panic.
var ErrPanicked = errors.New("internal error")

// panicError is a panic in a goroutine of an engine. It is reported like a refused statement, and ends neither the
// process nor the other goroutines.
type panicError struct{ error }

// Is matches ErrPanicked.
func (panicError) Is(target error) bool { return target == ErrPanicked }

// SQLState returns the code of an internal error, so that the database does not count as down.
func (panicError) SQLState() string { return "XX000" }

// Protected calls f and returns its panic as an error that matches [ErrPanicked]. what names the goroutine.
func Protected(what string, f func() error) (err error) {
	if panicked := safecall.Call(what, func() { err = f() }); panicked != nil {
		return panicError{panicked}
	}
	return err
}
